"""System calls that a sandboxed program may make, with their numbers on each architecture.

All other calls fail. Excluded on purpose are sockets (except pairs), execve, mounts, keys,
io_uring, files in memory (which are not counted), bpf, perf events, userfaultfd, ptrace,
process_vm_*, System V and POSIX queues, file handles, setuid, priorities, modules, clocks and all
calls that create or enter a namespace.
The numbers come from the kernel's asm/unistd_64.h and asm-generic/unistd.h.
"""

from __future__ import annotations

from collections.abc import Mapping


def _parse_table(text: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (i.partition("=") for i in text.split())}


X86_64: Mapping[str, int] = _parse_table(
    # files
    "read=0 write=1 open=2 openat=257 openat2=437 close=3 close_range=436 creat=85 stat=4 "
    "fstat=5 lstat=6 newfstatat=262 statx=332 lseek=8 pread64=17 pwrite64=18 readv=19 "
    "writev=20 preadv=295 pwritev=296 preadv2=327 pwritev2=328 access=21 faccessat=269 "
    "faccessat2=439 dup=32 dup2=33 dup3=292 pipe=22 pipe2=293 sendfile=40 copy_file_range=326 "
    "fsync=74 fdatasync=75 sync_file_range=277 truncate=76 ftruncate=77 "
    "fallocate=285 fadvise64=221 getdents=78 getdents64=217 getcwd=79 chdir=80 fchdir=81 "
    "rename=82 renameat=264 renameat2=316 mkdir=83 mkdirat=258 rmdir=84 link=86 linkat=265 "
    "unlink=87 unlinkat=263 symlink=88 symlinkat=266 readlink=89 readlinkat=267 chmod=90 "
    "fchmod=91 fchmodat=268 fchmodat2=452 umask=95 utime=132 utimes=235 utimensat=280 "
    "futimesat=261 statfs=137 fstatfs=138 "
    # memory
    "mmap=9 mprotect=10 munmap=11 brk=12 mremap=25 madvise=28 mincore=27 msync=26 "
    # processes
    "fork=57 vfork=58 exit=60 exit_group=231 wait4=61 waitid=247 kill=62 tkill=200 tgkill=234 "
    "getpid=39 gettid=186 getppid=110 getuid=102 geteuid=107 getgid=104 getegid=108 "
    "getresuid=118 getresgid=120 getgroups=115 getpgrp=111 getpgid=121 getsid=124 setsid=112 "
    "setpgid=109 set_tid_address=218 set_robust_list=273 get_robust_list=274 rseq=334 "
    "arch_prctl=158 futex=202 futex_waitv=449 membarrier=324 sched_yield=24 "
    "sched_getaffinity=204 sched_getparam=143 sched_getscheduler=145 getpriority=140 "
    "getrlimit=97 getrusage=98 times=100 getcpu=309 sysinfo=99 uname=63 capget=125 "
    "restart_syscall=219 "
    # signals
    "rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 rt_sigpending=127 rt_sigtimedwait=128 "
    "rt_sigsuspend=130 sigaltstack=131 pause=34 alarm=37 getitimer=36 setitimer=38 "
    "signalfd=282 signalfd4=289 "
    # waiting
    "poll=7 ppoll=271 select=23 pselect6=270 epoll_create=213 epoll_create1=291 epoll_ctl=233 "
    "epoll_wait=232 epoll_pwait=281 epoll_pwait2=441 eventfd=284 eventfd2=290 "
    "timerfd_create=283 timerfd_settime=286 timerfd_gettime=287 nanosleep=35 "
    "clock_nanosleep=230 "
    # clocks
    "clock_gettime=228 clock_getres=229 gettimeofday=96 time=201 getrandom=318 "
    # pairs of sockets
    "sendto=44 recvfrom=45 sendmsg=46 recvmsg=47 shutdown=48 getsockname=51 getpeername=52 "
    "getsockopt=55 "
    # checked
    "clone=56 clone3=435 ioctl=16 prctl=157 prlimit64=302 socketpair=53 "
    "fcntl=72 flock=73 "
)

AARCH64: Mapping[str, int] = _parse_table(
    # files
    "read=63 write=64 openat=56 openat2=437 close=57 close_range=436 fstat=80 newfstatat=79 "
    "statx=291 lseek=62 pread64=67 pwrite64=68 readv=65 writev=66 preadv=69 pwritev=70 "
    "preadv2=286 pwritev2=287 faccessat=48 faccessat2=439 dup=23 dup3=24 pipe2=59 sendfile=71 "
    "copy_file_range=285 fsync=82 fdatasync=83 sync_file_range=84 "
    "truncate=45 ftruncate=46 fallocate=47 fadvise64=223 getdents64=61 getcwd=17 chdir=49 "
    "fchdir=50 renameat=38 renameat2=276 mkdirat=34 linkat=37 unlinkat=35 symlinkat=36 "
    "readlinkat=78 fchmod=52 fchmodat=53 fchmodat2=452 umask=166 utimensat=88 statfs=43 "
    "fstatfs=44 "
    # memory
    "mmap=222 mprotect=226 munmap=215 brk=214 mremap=216 madvise=233 mincore=232 msync=227 "
    # processes
    "exit=93 exit_group=94 wait4=260 waitid=95 kill=129 tkill=130 tgkill=131 getpid=172 "
    "gettid=178 getppid=173 getuid=174 geteuid=175 getgid=176 getegid=177 getresuid=148 "
    "getresgid=150 getgroups=158 getpgid=155 getsid=156 setsid=157 setpgid=154 "
    "set_tid_address=96 set_robust_list=99 get_robust_list=100 rseq=293 futex=98 "
    "futex_waitv=449 membarrier=283 sched_yield=124 sched_getaffinity=123 sched_getparam=121 "
    "sched_getscheduler=120 getpriority=141 getrlimit=163 getrusage=165 times=153 getcpu=168 "
    "sysinfo=179 uname=160 capget=90 restart_syscall=128 "
    # signals
    "rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 rt_sigpending=136 "
    "rt_sigtimedwait=137 rt_sigsuspend=133 sigaltstack=132 getitimer=102 setitimer=103 "
    "signalfd4=74 "
    # waiting
    "ppoll=73 pselect6=72 epoll_create1=20 epoll_ctl=21 epoll_pwait=22 epoll_pwait2=441 "
    "eventfd2=19 timerfd_create=85 timerfd_settime=86 timerfd_gettime=87 nanosleep=101 "
    "clock_nanosleep=115 "
    # clocks
    "clock_gettime=113 clock_getres=114 gettimeofday=169 getrandom=278 "
    # pairs of sockets
    "sendto=206 recvfrom=207 sendmsg=211 recvmsg=212 shutdown=210 getsockname=204 "
    "getpeername=205 getsockopt=209 "
    # checked
    "clone=220 clone3=435 ioctl=29 prctl=167 prlimit64=261 socketpair=199 "
    "fcntl=25 flock=32 "
)

# What a shell and the programs of a system need in addition: execution, sockets within the own
# network, owners and extended attributes of files, timers, users (without capabilities).
SHELL_X86_64: Mapping[str, int] = _parse_table(
    "execve=59 execveat=322 socket=41 connect=42 accept=43 accept4=288 bind=49 listen=50 "
    "setsockopt=54 sendmmsg=307 recvmmsg=299 "
    "chown=92 fchown=93 lchown=94 fchownat=260 mknod=133 mknodat=259 setxattr=188 lsetxattr=189 "
    "fsetxattr=190 getxattr=191 lgetxattr=192 fgetxattr=193 listxattr=194 llistxattr=195 "
    "flistxattr=196 removexattr=197 lremovexattr=198 fremovexattr=199 inotify_init=253 "
    "inotify_init1=294 inotify_add_watch=254 inotify_rm_watch=255 splice=275 tee=276 vmsplice=278 "
    "sync=162 syncfs=306 "
    "setuid=105 setgid=106 setreuid=113 setregid=114 setgroups=116 setresuid=117 setresgid=119 "
    "setrlimit=160 setpriority=141 sched_setaffinity=203 sched_setscheduler=144 "
    "sched_get_priority_max=146 sched_get_priority_min=147 pidfd_open=434 pidfd_send_signal=424 "
    "timer_create=222 timer_settime=223 timer_gettime=224 timer_getoverrun=225 timer_delete=226 "
)

SHELL_AARCH64: Mapping[str, int] = _parse_table(
    "execve=221 execveat=281 socket=198 connect=203 accept=202 accept4=242 bind=200 listen=201 "
    "setsockopt=208 sendmmsg=269 recvmmsg=243 "
    "fchown=55 fchownat=54 mknodat=33 setxattr=5 lsetxattr=6 fsetxattr=7 getxattr=8 lgetxattr=9 "
    "fgetxattr=10 listxattr=11 llistxattr=12 flistxattr=13 removexattr=14 lremovexattr=15 "
    "fremovexattr=16 inotify_init1=26 inotify_add_watch=27 inotify_rm_watch=28 vmsplice=75 "
    "splice=76 tee=77 sync=81 syncfs=267 "
    "setregid=143 setgid=144 setreuid=145 setuid=146 setresuid=147 setresgid=149 setgroups=159 "
    "setrlimit=164 setpriority=140 sched_setscheduler=119 sched_setaffinity=122 "
    "sched_get_priority_max=125 sched_get_priority_min=126 pidfd_open=434 pidfd_send_signal=424 "
    "timer_create=107 timer_gettime=108 timer_getoverrun=109 timer_settime=110 timer_delete=111 "
)
