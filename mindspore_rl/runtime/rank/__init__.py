"""What runs in each rank of a job."""
