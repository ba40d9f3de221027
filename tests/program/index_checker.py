def check(e, p): return []
