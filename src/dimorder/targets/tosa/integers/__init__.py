"""Write quantised networks as TOSA INT graphs of integers, and compute what such a graph gives."""
