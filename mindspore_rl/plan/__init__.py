"""The plan: the only thing that crosses from the compiler to the runtime."""
