"""Redlock with fencing tokens and without a wall clock: see docs/protocol.md for the rules and why
they are safe.
"""
