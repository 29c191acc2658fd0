"""Execution of containers: plan, operands, backends, state, sessions, dumps."""
