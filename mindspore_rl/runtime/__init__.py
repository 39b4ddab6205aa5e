"""Starting, running, watching, saving and recording a job."""
