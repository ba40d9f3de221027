"""Find where a model changes the order of its values, and what each operator of this torch does to orders.

`trace` records a run, `findings` judges it, `inspection` and `compare` report it; `probe` tries operators.
"""
