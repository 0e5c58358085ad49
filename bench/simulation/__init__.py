"""Simulation of reinforcement learning in virtual time, for the scripts of bench/."""
