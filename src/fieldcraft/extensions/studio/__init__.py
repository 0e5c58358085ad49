"""Local web page that shows runs during training and afterwards."""
