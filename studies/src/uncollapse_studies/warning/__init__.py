"""Early warning: how long before a run fails its detectors tell, how often they are wrong, and whether the cause is."""
