"""Sandbox for Python programs that a model wrote. The local one needs neither root nor Docker.

Not covered:

- Defects of the Linux kernel. A program makes system calls to the host's own kernel. If this is not
  acceptable, run the sandbox server in a virtual machine.
- Side channels: timing, shared processor caches, the load of the machine.
- Memory peaks of a tenth of a second: the processes of a run can together exceed the memory limit
  until their usage is checked again.
- Reports of a program about itself. It controls its own interpreter, so the value of the last
  expression and an exit status of 0 can be forged. A grader that must not be fooled compares
  standard output with the expected output, or uses `Sandbox.test`.
- Secrets in the Python installation: installed packages and the system's shared libraries can be
  read.
- Systems other than Linux on x86-64 or ARM64. Other backends run programs elsewhere (`backends`).

docs/tools.md describes the protection of each layer.
"""
