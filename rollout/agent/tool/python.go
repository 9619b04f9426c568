package tool

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed session.py
var sessionProgram string

// PythonConfig bounds Python sessions. A zero is the default.
type PythonConfig struct {
	Timeout  time.Duration // of a call, by the clock on the wall; 10 s
	Memory   int64         // bytes of a session's address space; 1 GiB
	FileSize int64         // bytes of a file that a session writes, and of what a call prints; 16 MiB
	Output   int           // bytes of it that a model gets to read, the middle is left out; 16 KiB
	// Accept names protections that this machine may lack: "files" keeps a session from files outside its scratch folder
	// (Landlock, Linux 6.2), "calls" from networks, processes, threads and signals (seccomp). Without the latter, code can
	// outlive a host that is killed. Both need Python's ctypes.
	Accept []string
}

// Python makes sessions of the python3 in PATH, with the packages that it has.
type Python struct {
	Missing []string // accepted protections that this machine lacks
	config  PythonConfig
	path    []string // the interpreter, and where its modules lie
}

// OpenPython looks for python3 and tries a session. It is an error if this machine lacks a protection that c does not
// accept. Scratch folders that hosts left which were killed are removed, but for those of the last minute.
func OpenPython(ctx context.Context, c PythonConfig) (*Python, error) {
	c.Timeout, c.Output = cmp.Or(c.Timeout, 10*time.Second), cmp.Or(c.Output, 16<<10)
	c.Memory, c.FileSize = cmp.Or(c.Memory, 1<<30), cmp.Or(c.FileSize, 16<<20)
	p := &Python{config: c}
	const ask = "import json, sys; print(json.dumps([sys.executable, *sys.path]))"
	answer, err := exec.CommandContext(ctx, "python3", "-I", "-c", ask).Output()
	if err = cmp.Or(err, json.Unmarshal(answer, &p.path)); err != nil || len(p.path) == 0 {
		return nil, fmt.Errorf("tool: python3 does not run; Python 3.8 or newer is needed in PATH: %w", err)
	}
	abandoned, _ := filepath.Glob(filepath.Join(os.TempDir(), scratchPattern))
	for _, dir := range abandoned {
		if lock, err := lockFolder(dir); err == nil {
			if info, err := lock.Stat(); err == nil && time.Since(info.ModTime()) > time.Minute { // else a host is about to lock it
				removeFolder(dir)
			}
			lock.Close()
		}
	}
	trial := p.Session()
	if p.Missing, err = trial.start(ctx); err != nil {
		err = fmt.Errorf("tool: %w", err)
	}
	return p, errors.Join(err, trial.Close())
}

const scratchPattern = "molt-python-*"

// lockFolder opens a folder that no living process has locked. The lock ends with this process.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// removeFolder removes what code made of a folder, be it closed to its owner or deeper than os.RemoveAll can open.
func removeFolder(dir string) error {
	if os.Remove(dir) == nil {
		return nil
	}
	const script = `rm -rf -- "$1" 2>&- || { find "$1" -type d -exec chmod u+rwx {} \;; rm -rf -- "$1"; }`
	if out, err := exec.Command("sh", "-c", script, "sh", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("tool: remove %s: %w: %.200s", dir, err, out)
	}
	return nil
}

const (
	maxCode    = 1 << 20     // bytes
	startLimit = time.Minute // for Python to start: hundreds may do so at once
	exitMemory = 77          // the status that session.py ends with
)

// Session is a Python process whose variables last from call to call, in a scratch folder. It starts with the first call.
// Calls of several goroutines wait for each other.
type Session struct {
	python *Python

	mu     sync.Mutex
	folder *os.File // the scratch folder, locked; nil: none yet
	output *os.File // what a call prints, in memory
	lost   bool     // an earlier process has ended
	closed bool

	cmd      *exec.Cmd     // nil: no process
	done     chan struct{} // closed when it has ended
	requests io.Writer
	replies  *bufio.Reader
}

// Session makes a session, which its owner closes.
func (p *Python) Session() *Session { return &Session{python: p} }

// Tool is the session as a tool of a model.
func (s *Session) Tool() Tool {
	c := s.python.config
	return oneString("python", fmt.Sprintf("Runs Python code. Variables, functions and imports last from call to call. "+
		"What the code prints and the value of a last expression come back. A call may take %v and %d MiB. There is no network, "+
		"no thread and no other process, and only the current folder can be written to.", c.Timeout, c.Memory>>20),
		"code", "Python code", s.Run)
}

// Close ends the process, after a call that is running, and removes the scratch folder. It may be called again.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.cmd != nil {
		s.end(nil)
	}
	if s.folder == nil {
		return nil
	}
	err := removeFolder(s.folder.Name())
	s.folder.Close()
	s.output.Close()
	s.folder = nil
	return err
}

// Run runs code and returns what it printed and the value of a last expression, or the end of an exception's traceback.
// Where the process ended, because the code took too much time or memory or left, the text says so, and the next call
// starts another one. An error is the host's fault, or the end of ctx, which ends the process too.
func (s *Session) Run(ctx context.Context, code string) (string, error) {
	if len(code) > maxCode {
		return fmt.Sprintf("error: the code has %d bytes; at most %d are run", len(code), maxCode), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, name, news := s.python.config, rand.Text(), ""
	if s.cmd == nil {
		if _, err := s.start(ctx); err != nil {
			return "", fmt.Errorf("tool: %w", err)
		}
		if s.lost {
			news = "[a new session: what earlier calls defined is gone]\n"
		}
	}
	s.output.Truncate(0)
	s.output.Seek(0, io.SeekStart)
	s.cmd.Process.Signal(unix.SIGCONT)
	line, err := s.exchange(ctx, c.Timeout, fmt.Sprintf("%s %d\n%s", name, len(code), code))
	if err == nil && line == name+"\n" {
		s.cmd.Process.Signal(unix.SIGSTOP) // so that nothing runs between calls
		return news + s.printed(c.Output), nil
	}
	end := s.end(err)
	return strings.TrimPrefix(news+s.printed(c.Output)+"\n"+end, "\n"), context.Cause(ctx)
}

// start starts a process and returns the protections that it lacks.
func (s *Session) start(ctx context.Context) (missing []string, err error) {
	if s.closed {
		return nil, errors.New("the Python session is closed")
	}
	if s.folder == nil {
		fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		s.output = os.NewFile(uintptr(fd), "output")
		dir, err := os.MkdirTemp("", scratchPattern)
		if err == nil {
			s.folder, err = lockFolder(dir)
		}
		if err != nil {
			s.output.Close()
			return nil, err
		}
	}
	c, dir := s.python.config, s.folder.Name()
	settings, err := json.Marshal(map[string]any{"scratch": dir, "path": s.python.path[1:], "host": os.Getpid(),
		"calls": deniedCalls, "arguments": deniedArguments, "limits": [][2]int64{
			{unix.RLIMIT_AS, c.Memory}, {unix.RLIMIT_FSIZE, c.FileSize}, {unix.RLIMIT_NOFILE, 64}, {unix.RLIMIT_CORE, 0}}})
	done, started := make(chan struct{}), make(chan error)
	cmd := exec.Command(s.python.path[0], "-S", "-s", "-c", sessionProgram, string(settings))
	requests, inErr := cmd.StdinPipe()
	replies, outErr := cmd.StdoutPipe()
	if err := cmp.Or(err, inErr, outErr); err != nil {
		return nil, err
	}
	cmd.Dir, cmd.Stderr = "/", s.output
	cmd.Env = []string{"HOME=" + dir, "TMPDIR=" + dir, "LANG=C.UTF-8", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1",
		"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	go func() {
		runtime.LockOSThread() // the parent-death signal comes when this thread ends, so it waits here
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err != nil {
			return
		}
		for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // what it started, while the number of its group is still taken
		cmd.Wait()
		close(done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	s.cmd, s.done, s.requests, s.replies = cmd, done, requests, bufio.NewReaderSize(replies, 256)
	ready, err := s.exchange(ctx, startLimit, "")
	if err != nil || !strings.HasPrefix(ready, "ready ") {
		end := s.end(err)
		return nil, cmp.Or(context.Cause(ctx), fmt.Errorf("python3 does not start: %s %s", end, s.printed(c.Output)))
	}
	missing = strings.Fields(ready)[1:]
	for _, m := range missing {
		if !slices.Contains(c.Accept, m) {
			s.end(nil)
			return nil, fmt.Errorf("this machine cannot confine the %s of a session; Accept: []string{%q} goes without", m, m)
		}
	}
	return missing, nil
}

// exchange sends a request and reads a line of reply. If ctx ends or the limit before, the process is killed.
func (s *Session) exchange(ctx context.Context, limit time.Duration, request string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := s.cmd
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	io.WriteString(s.requests, request) // where that fails, so does reading
	line, err := s.replies.ReadSlice('\n')
	if !stop() {
		err = ctx.Err()
	}
	return string(line), err
}

// end kills the process and says why; err is what reading its reply gave.
func (s *Session) end(err error) string {
	if err != nil && err != bufio.ErrBufferFull {
		select { // it is ending, or has closed its side
		case <-s.done:
		case <-time.After(time.Second):
		}
	}
	s.cmd.Process.Kill()
	<-s.done
	c, state := s.python.config, s.cmd.ProcessState
	s.cmd, s.lost = nil, true
	why := "Python ended: " + state.String()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		why = fmt.Sprintf("out of time: a call may take %v", c.Timeout)
	case state.ExitCode() == exitMemory:
		why = fmt.Sprintf("out of memory: a session may have %d MiB", c.Memory>>20)
	case err == nil || err == bufio.ErrBufferFull:
		why = "the code wrote to a file that it had not opened"
	}
	return "[" + why + "; the session has ended]"
}

// printed is the output of a call, of a long one the beginning and the end.
func (s *Session) printed(most int) string {
	size, _ := s.output.Seek(0, io.SeekEnd)
	text := make([]byte, min(int(size), most))
	half, gap := len(text)/2, ""
	s.output.ReadAt(text[:half], 0)
	s.output.ReadAt(text[half:], size-int64(len(text)-half))
	if left := int(size) - len(text); left > 0 {
		gap = fmt.Sprintf("\n[%d bytes are left out]\n", left)
	}
	return strings.TrimSuffix(strings.ToValidUTF8(string(text[:half])+gap+string(text[half:]), "\uFFFD"), "\n")
}

// deniedCalls fail in a session: they reach beyond the process, its memory limit and the contents of its files. Every
// process, thread, signal and socket begins with one of them, so that no namespace is needed.
var deniedCalls = []int{
	unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_SETPGID, unix.SYS_SOCKET, unix.SYS_IO_URING_SETUP, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PRLIMIT64,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_PIDFD_GETFD, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV,
	unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE, unix.SYS_KCMP, unix.SYS_MIGRATE_PAGES,
	unix.SYS_MOVE_PAGES, unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETSCHEDULER,
	unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR, unix.SYS_USERFAULTFD, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_SHMGET, unix.SYS_MSGGET, unix.SYS_SEMGET, unix.SYS_MQ_OPEN,
	unix.SYS_CHMOD, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_CHOWN, unix.SYS_FCHOWN, unix.SYS_LCHOWN,
	unix.SYS_FCHOWNAT, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT, unix.SYS_UTIMENSAT, unix.SYS_SETXATTR, unix.SYS_LSETXATTR,
	unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
}

// deniedArguments fail too: a call, the number of an argument, and a value of some of its bits.
var deniedArguments = [][4]uint32{
	{unix.SYS_PRCTL, 0, ^uint32(0), unix.PR_SET_PDEATHSIG},                                            // to outlive the host
	{unix.SYS_FCNTL, 1, ^uint32(0), unix.F_SETOWN}, {unix.SYS_FCNTL, 1, ^uint32(0), unix.F_SETOWN_EX}, // signals, by way of a file
	{unix.SYS_IOCTL, 1, ^uint32(0), 0x8901}, {unix.SYS_IOCTL, 1, ^uint32(0), 0x8902}, // FIOSETOWN, SIOCSPGRP: the same
	{unix.SYS_SOCKETPAIR, 1, 0xf, unix.SOCK_DGRAM}, {unix.SYS_SOCKETPAIR, 1, 0xf, unix.SOCK_RAW}, // can send to any path
	{unix.SYS_SOCKETPAIR, 1, 0xf, unix.SOCK_SEQPACKET},
}
