"""The command `uncollapse reproduce`."""
