"""What crosses from the compiler to the runtime."""
