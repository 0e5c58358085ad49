"""A sandbox for Python programs that a model wrote. It needs neither root nor Docker.

What it does not cover:

- A defect of the Linux kernel. A program makes system calls to the host's own kernel; where that is
  too much trust, run the sandbox server in a virtual machine.
- Side channels: timing, shared caches of the processor, the load of the machine.
- A tenth of a second: the processes of a run can use more memory together than the limit for as
  long as it takes to look at them again.
- What a program says about itself. It shares its interpreter with what prints, so the value of the
  last expression and an exit status of 0 are its own words. A grader that must not be fooled
  compares standard output with what it expects, or uses `Sandbox.test`.
- Secrets in the Python installation: installed packages and the system's shared libraries can be
  read.
- Other machines than Linux on x86-64 or ARM64.

docs/tools.md says what is contained by which layer.
"""
