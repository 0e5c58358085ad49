"""Distributed runs in many processes, placed by Ray on one machine or several."""
