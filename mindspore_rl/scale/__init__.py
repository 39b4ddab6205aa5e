"""What a job would take: costs that are measured, and its plan carried out in virtual time."""
