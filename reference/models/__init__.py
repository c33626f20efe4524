"""Whole models of one family each, in reference ops alone."""
