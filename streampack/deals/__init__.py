"""Dealing: divides a source among the lanes of a finite run as needed, so that they end together.

This package selects the sources that are dealt, collects the lanes' reports, and determines the
parts that each lane reads. It does not depend on documents, batches or windows.
"""
