"""What a program is lowered for."""
