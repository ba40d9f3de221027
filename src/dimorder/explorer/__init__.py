"""Open plans and .pte files in Google's Model Explorer.

It finds the adapter by: `model-explorer net.pte --extensions=dimorder.explorer`.
"""
