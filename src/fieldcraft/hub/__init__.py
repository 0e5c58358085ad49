"""Models and data by the names that people use: those of Hugging Face's hub, and files of other
programs. What is named becomes a folder or a file of this machine, which all else reads."""
