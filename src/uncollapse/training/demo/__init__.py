"""The experiment behind `uncollapse demo`."""
