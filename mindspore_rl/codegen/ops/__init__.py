"""Code generation rules for MindSpore's primitives; `all.py` gathers the table."""
