"""A local page that shows what runs did, while they train and afterwards."""
