"""What a profiled run says of where its time goes."""
