"""Decides what pytest leaves alone here: a package that tests install, and that nothing else imports."""

collect_ignore = ["outside"]
