"""Figures and pages drawn from the tables of `floatscope.analysis`. Nothing is computed here."""
