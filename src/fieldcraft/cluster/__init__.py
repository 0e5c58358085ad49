"""A run in many processes, which Ray places on one machine or several."""
