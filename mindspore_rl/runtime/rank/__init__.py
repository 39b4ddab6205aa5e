"""Code that runs in each rank of a job."""
