package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var everything = []string{"files", "calls"}

// python is opened once for all tests that need none of their own, as each start of python3 takes its time.
var python = sync.OnceValues(func() (*Python, error) {
	return OpenPython(context.Background(), PythonConfig{Accept: everything})
})

// open makes a session with those of c's limits that are not zero.
func open(t *testing.T, c PythonConfig) (*Python, *Session) {
	t.Helper()
	folder(t)
	shared, err := python()
	if err != nil {
		t.Fatal(err)
	}
	p := *shared
	p.config.Timeout, p.config.Memory = cmp.Or(c.Timeout, p.config.Timeout), cmp.Or(c.Memory, p.config.Memory)
	p.config.FileSize, p.config.Output = cmp.Or(c.FileSize, p.config.FileSize), cmp.Or(c.Output, p.config.Output)
	return &p, session(t, &p)
}

// hurried is p for a call that is to run out of time.
func hurried(p *Python) *Python {
	h := *p
	h.config.Timeout = time.Second / 2
	return &h
}

// folder gives the test a temporary folder of its own.
func folder(t *testing.T) {
	t.Helper()
	if !strings.Contains(os.TempDir(), t.Name()) {
		t.Setenv("TMPDIR", t.TempDir())
	}
}

// session is one of p; after the test no process and no file may be left.
func session(t *testing.T, p *Python) *Session {
	t.Helper()
	t.Cleanup(func() {
		if left := leftovers(t); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	s := p.Session()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// sessions are the command lines of the sessions of this test's TMPDIR.
func sessions(t *testing.T) (found []string) {
	t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range commands {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), `"scratch":"`+os.TempDir()) {
			found = append(found, f)
		}
	}
	return found
}

// leftovers are the files in TMPDIR and the children of this process, zombies too.
func leftovers(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range children {
		if b, err := os.ReadFile(f); err == nil && len(b) > 0 {
			left = append(left, "child "+string(b))
		}
	}
	return append(left, sessions(t)...)
}

func run(t *testing.T, s *Session, code string) string {
	t.Helper()
	text, err := s.Run(t.Context(), code)
	if err != nil {
		t.Fatalf("%.60s: %v", code, err)
	}
	return text
}

// confined says whether this machine can give a protection. Where it cannot, a test of that name shows that nobody is told
// otherwise.
func confined(t *testing.T, p *Python, what string) bool {
	t.Helper()
	if !slices.Contains(p.Missing, what) {
		return true
	}
	t.Run("this machine cannot confine "+what, func(t *testing.T) {
		if _, err := OpenPython(t.Context(), PythonConfig{}); err == nil || !strings.Contains(err.Error(), "cannot confine the") {
			t.Errorf("without Accept: %v", err)
		}
	})
	return false
}

const news = "[a new session: what earlier calls defined is gone]\n"

func TestVariablesAndImportsLastFromCallToCall(t *testing.T) {
	_, s := open(t, PythonConfig{})
	for _, c := range [][2]string{
		{"x = 20", ""},
		{"import math\ndef f(n):\n    return n + x", ""},
		{"f(math.gcd(22, 44))", "42"},
		{"print('a'); print('b', end=''); x += 1; 'c'", "a\nb'c'"},
		{"x", "21"},
		{"_ + 1", "22"},
		{"None", ""},
		{"for i in range(2): i", ""},
		{"", ""},
		{"# nothing", ""},
		{"import sys; print('err', file=sys.stderr); print('out')", "err\nout"},
		{"print('é\\ud800')", `é\ud800`},
		{"import os; _ = os.write(1, b'\\xff!')", "\uFFFD!"},
		{"input()", "EOFError: EOF when reading a line"},
		{"open('f', 'w').write('abc')", "3"},
		{"open('f').read(), os.path.exists('output')", "('abc', False)"},
		{"os.makedirs('a/b'); import tempfile; tempfile.TemporaryDirectory().cleanup()", ""},
		{"open('m.py', 'w').write('y = 5'); import m; m.y", "5"},
		{"class A: pass\nimport pickle; type(pickle.loads(pickle.dumps(A()))) is A", "True"},
		{"import asyncio\nasync def g(): return 7\nasyncio.run(g())", "7"},
		{"list({'a', 'b', 'c', 'd', 'e'}) == " + run(t, s, "list({'a', 'b', 'c', 'd', 'e'})"), "True"},
	} {
		if got := run(t, s, c[0]); got != c[1] && !(strings.HasSuffix(got, c[1]) && strings.HasPrefix(got, "Traceback")) {
			t.Errorf("%s: %q, want %q", c[0], got, c[1])
		}
	}
}

// A model's reply must not depend on chance, so the order of a set is the same in each process.
func TestHashesAreTheSameInEachSession(t *testing.T) {
	p, s := open(t, PythonConfig{})
	other := p.Session()
	defer other.Close()
	const code = "list(map(str, {chr(i) for i in range(99, 130)}))"
	if a, b := run(t, s, code), run(t, other, code); a != b {
		t.Errorf("%s\n%s", a, b)
	}
}

func TestAnExceptionIsTheEndOfItsTraceback(t *testing.T) {
	_, s := open(t, PythonConfig{})
	got := run(t, s, "x = 1\ndef f(n):\n return g(n)\ndef g(n):\n return f(n - 1) if n else 1 / n\nprint('before')\nf(50)\nprint('after')")
	if !strings.HasPrefix(got, "before\nTraceback") || !strings.HasSuffix(got, "ZeroDivisionError: division by zero") {
		t.Error(got)
	}
	if n := strings.Count(got, "\n"); n > 16 || !strings.Contains(got, "else 1 / n") {
		t.Errorf("%d lines: %s", n, got)
	}
	if got := run(t, s, "def h():\n    1 / 0\nh()"); strings.Count(got, "File ") != 2 {
		t.Errorf("frames of others than the code: %s", got)
	}
	for code, want := range map[string]string{
		"x +":                     "SyntaxError: invalid syntax",
		"x = '\x00'":              "null bytes",
		"import sys; sys.exit(3)": "SystemExit: 3",
		"raise KeyboardInterrupt": "KeyboardInterrupt",
		"def r(): r()\nr()":       "RecursionError: maximum recursion depth exceeded",
		"class E(Exception):\n  def __str__(self): raise ValueError\nraise E": "<exception str() failed>",
		"class R:\n  def __repr__(self): return 1\nR()":                       "TypeError: __repr__ returned non-string",
	} {
		if got := run(t, s, code); !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", code, got, want)
		}
	}
	if got := run(t, s, "x"); got != "1" {
		t.Errorf("after all that x is %s", got)
	}
}

func TestFilesOutsideTheScratchFolderAreClosed(t *testing.T) {
	p, s := open(t, PythonConfig{})
	if !confined(t, p, "files") {
		return
	}
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o666); err != nil {
		t.Fatal(err)
	}
	neighbour := p.Session()
	defer neighbour.Close()
	theirs := strings.Trim(run(t, neighbour, "import os; open('f', 'w').close(); os.path.abspath('f')"), "'")
	run(t, s, fmt.Sprintf("import os, sys, shutil; outside, theirs, parent = %q, %q, os.getppid()", outside, theirs))
	for _, code := range []string{
		"open('/etc/passwd').read()",
		"os.listdir('/')",
		"os.listdir(os.path.dirname(os.getcwd()))",
		"open(outside).read()",
		"open(outside, 'w')",
		"open(outside, 'a')",
		"open(outside + '2', 'w')",
		"os.truncate(outside, 0)",
		"os.unlink(outside)",
		"os.rename(outside, 'f')",
		"os.link(outside, 'l')",
		"os.symlink(outside, 's'); open('s').read()",
		"os.mkdir(outside + '3')",
		"os.mkfifo(outside + '4')",
		"os.open(outside, os.O_RDONLY | os.O_TRUNC)",
		"open(theirs)",
		"open(f'/proc/{parent}/environ')",
		"open(f'/proc/{parent}/mem', 'r+b')",
		"open('/proc/self/mem', 'r+b')",
		"open('/dev/shm/molt-test', 'w')",
		"open(os.__file__, 'a')",
	} {
		if got := run(t, s, code); !strings.Contains(got, "PermissionError: [Errno 13]") && !strings.Contains(got, "OSError: [Errno 18]") {
			t.Errorf("%s: %q", code, got)
		}
	}
	if b, err := os.ReadFile(outside); string(b) != "secret" {
		t.Errorf("the file outside: %q, %v", b, err)
	}
	if got := run(t, s, "open('/dev/null', 'w').write('x'); import sqlite3, ssl, decimal; len(os.urandom(2))"); got != "2" {
		t.Errorf("what a session needs: %q", got)
	}
}

func TestNoNetworkProcessesThreadsOrSignals(t *testing.T) {
	p, s := open(t, PythonConfig{})
	if !confined(t, p, "calls") {
		return
	}
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Wait()
	defer bystander.Process.Kill()
	run(t, s, fmt.Sprintf("victim, parent = %d, %d", bystander.Process.Pid, os.Getpid())+`
import ctypes, fcntl, os, resource, signal, socket, subprocess, threading
kernel = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    if kernel.syscall(*arguments) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
a, b = socket.socketpair()
open('f', 'w').close()`)
	for _, code := range []string{
		"socket.socket()",
		"socket.create_connection(('127.0.0.1', 9))",
		"socket.socket(socket.AF_UNIX)",
		"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
		"socket.socketpair(type=socket.SOCK_DGRAM)",
		"call(425, 1, ctypes.create_string_buffer(120))", // io_uring_setup
		"os.fork()",
		"subprocess.run(['true'])",
		"os.posix_spawn('/bin/true', ['true'], {})",
		"os.execv('/bin/true', ['true'])",
		"call(56, 17, 0, 0, 0, 0)", // clone with SIGCHLD
		"call(435, bytes(88), 88)", // clone3
		"call(58)",                 // vfork
		"os.kill(victim, 9)",
		"os.kill(parent, 0)",
		"os.killpg(0, 9)",
		"call(234, victim, victim, 9)", // tgkill
		"signal.pidfd_send_signal(0, 9)",
		"os.pidfd_open(victim)",
		"call(101, 16, victim, 0, 0)", // ptrace, attach
		"call(157, 1, 0, 0, 0, 0)",    // prctl: no parent-death signal
		"fcntl.fcntl(a, 8, victim)",   // F_SETOWN
		"fcntl.ioctl(a, 0x8901, bytes([1, 0, 0, 0]))",
		"resource.prlimit(victim, resource.RLIMIT_CPU, (1, 1))",
		"os.sched_setaffinity(victim, {0})",
		"os.setpriority(os.PRIO_PROCESS, victim, 19)",
		"os.setpgid(0, os.getpgid(parent))",
		"os.memfd_create('m')",
		"os.chmod('f', 0)",
		"os.chown('f', 0, 0)",
		"os.utime('f')",
		"os.setxattr('f', 'user.x', b'')",
	} {
		if got := run(t, s, code); !strings.Contains(got, "PermissionError: [Errno 1]") {
			t.Errorf("%s: %q", code, got)
		}
	}
	for code, want := range map[string]string{
		"threading.Thread(target=print).start()":              "can't start new thread",
		"call(0x40000000 | 41, 2, 1, 0)":                      "[Errno 38]", // socket of the x32 ABI
		"call(463)":                                           "[Errno 38]", // a later kernel's
		"resource.setrlimit(resource.RLIMIT_AS, (-1, -1))":    "Error",
		"resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))": "Error",
		"a.send(b'x'); b.recv(1)":                             "b'x'",
		"open('/proc/self/status').read()":                    "Error",
	} {
		if got := run(t, s, code); !strings.Contains(got, want) {
			t.Errorf("%s: %q", code, got)
		}
	}
	if err := bystander.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the bystander: %v", err)
	}
}

// The process of a root host keeps no capability, which would undo much of the above.
func TestASessionHasNoCapabilities(t *testing.T) {
	p, s := open(t, PythonConfig{})
	if !confined(t, p, "calls") {
		return
	}
	run(t, s, "0")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	none := strings.Repeat("0", 16)
	for _, want := range []string{"CapPrm:\t" + none, "CapEff:\t" + none, "NoNewPrivs:\t1", "Seccomp:\t2", "Threads:\t1"} {
		if !strings.Contains(string(status), want+"\n") {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
}

// What a call uses up is told to the model; the session's process ends, and the next call says that it has another one.
func TestACallOutOfTimeOrMemoryEndsTheSession(t *testing.T) {
	p, s := open(t, PythonConfig{Memory: 256 << 20})
	hurry := hurried(p)
	const time = "[out of time: a call may take 500ms; the session has ended]"
	const memory = "[out of memory: a session may have 256 MiB; the session has ended]"
	for _, c := range []struct {
		p          *Python
		code, want string
	}{
		{p, "bytearray(10 << 30)", memory},
		{p, "x = []\nwhile True: x.append(bytes(100000))", memory},
		{p, "print('a')\nx = [bytearray(1 << 20) for _ in range(1000)]", "a\n" + memory},
		{p, "import os; os._exit(3)", "[Python ended: exit status 3; the session has ended]"},
		{p, "import ctypes; ctypes.string_at(0)", "[Python ended: signal: segmentation fault; the session has ended]"},
		{hurry, "9**9**9", time},
		{hurry, "import signal\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n  except Exception: pass\nprint('b')\n" +
			"while True:\n  try:\n    while True: pass\n  except BaseException: pass", "b\n" + time},
	} {
		run(t, s, "z = 5")
		s.python = c.p
		if got := run(t, s, c.code); got != c.want {
			t.Errorf("%q: %q, want %q", c.code, got, c.want)
		}
		s.python = p
		if got := run(t, s, "'z' in globals()"); got != news+"False" {
			t.Errorf("the call after %q: %q", c.code, got)
		}
	}
}

func TestOutputAndFilesHaveLimits(t *testing.T) {
	_, s := open(t, PythonConfig{FileSize: 1 << 20, Output: 1000})
	got := run(t, s, "print('first')\nwhile True: print('y' * 100)")
	if !strings.HasPrefix(got, "first\nyyy") || !strings.HasSuffix(got, "OSError: [Errno 27] File too large") ||
		!strings.Contains(got, "\n[1047576 bytes are left out]\n") || len(got) > 1100 {
		t.Errorf("endless output: %d bytes: %s", len(got), got)
	}
	for code, want := range map[string]string{
		"open('f', 'wb').write(bytes(2 << 20))":   "File too large",
		"open('g', 'wb').truncate(2 << 20)":       "File too large",
		"[open('/dev/null') for _ in range(100)]": "Too many open files",
		"print('z' * 1000)":                       strings.Repeat("z", 499),
	} {
		if got := run(t, s, code); !strings.Contains(got, want) {
			t.Errorf("%s: %q", code, got)
		}
	}
	if got := run(t, s, strings.Repeat("#", 10<<20)); got != "error: the code has 10485760 bytes; at most 1048576 are run" {
		t.Error(got)
	}
}

// forge is code that replies to the host in the place of session.py.
const forge = `import os, sys
f = sys._getframe()
while f.f_back: f = f.f_back
os.write(f.f_globals['replies'], f.f_globals['name'] + b'\n')
`

// Code runs in the interpreter that runs session.py, so it can find and break everything of it; what must hold is that the
// host is not misled into an error, into waiting, or into taking one call's output for another's.
func TestCodeCannotMisleadTheHost(t *testing.T) {
	p, s := open(t, PythonConfig{})
	const ended = "the session has ended]"
	try := func(code, want string) string {
		if s.python = p; want == ended {
			s.python = hurried(p)
		}
		return run(t, s, code)
	}
	for _, c := range []struct{ code, want, next string }{
		{"import os, sys; sys.stdout.close(); os.close(1); os.close(2)", "", "5"},
		{"import sys; sys.stdout = sys.stderr = None", "", "5"},
		{"import builtins; del builtins.print; 1", "1", ""},
		{"print('ready files calls')\nprint('ABCDEFGHIJKLMNOPQRSTUVWXYZ')", "ready files calls\nABCDEFGHIJKLMNOPQRSTUVWXYZ", "5"},
		{"import os\nfor fd in range(1, 64):\n  try: os.write(fd, b'ready\\n')\n  except OSError: pass", ended, news + "5"},
		{"import os\nfor fd in range(3, 64):\n  try:\n    while True: os.write(fd, b'x' * 99)\n  except OSError: pass", ended, news + "5"},
		{"import os; os.closerange(0, 64)", ended, news + "5"},
		{"import sys; sys.modules.clear()", "", ""},
		{"import os; os.write = os.dup2 = None", ended, news + "5"},
		{"import sys; sys.stdin.read(); open(0).read()", "", "5"},
		{"import os\nfor fd in range(3, 9):\n  try: os.read(fd, 1)\n  except OSError: pass", ended, news + "5"},
		{"import os, sys; os.lseek(2, 1 << 30, 0); os.write(2, b'x')", "", "5"},
		{"import os; os.ftruncate(2, 1 << 20)", "", "5"},
		{"import os; os.chdir('/')", "", "5"},
		{"import gc\nfor o in gc.get_objects():\n  if isinstance(o, dict): o.pop('requests', None)", "", ended},
		// A forged reply: the call ends early, and the true reply is then the next call's, which is none.
		{forge, "", ended},
	} {
		if got := try(c.code, c.want); !strings.Contains(got, c.want) || strings.Count(got, "x") > 20000 {
			t.Errorf("%q: %.300q, want %q", c.code, got, c.want)
		}
		if got := try("print(5)", c.next); !strings.Contains(got, c.next) {
			t.Errorf("the call after %q: %.300q, want %q", c.code, got, c.next)
		}
		if s.cmd != nil && !strings.HasPrefix(c.next, news) { // what the code broke is for this case only
			s.end(nil)
		}
	}
}

// state is the letter that Linux has for what a process does: T is stopped.
func state(t *testing.T, pid int) string {
	t.Helper()
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // none: it has ended
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:min(1, len(rest))]
}

func TestNothingRunsBetweenCalls(t *testing.T) {
	p, s := open(t, PythonConfig{})
	got := run(t, s, forge+"while True: pass")
	pid := s.cmd.Process.Pid
	for deadline := time.Now().Add(10 * time.Second); state(t, pid) != "T"; runtime.Gosched() { // the signal is on its way
		if time.Now().After(deadline) {
			t.Fatal("the process runs")
		}
	}
	if got != "" {
		t.Errorf("the forged reply: %q", got)
	}
	s.python = hurried(p)
	if got := run(t, s, "1"); got != "[out of time: a call may take 500ms; the session has ended]" {
		t.Errorf("the next call: %q", got)
	}
}

func TestTheEndOfAContextEndsTheCallWithAnError(t *testing.T) {
	_, s := open(t, PythonConfig{})
	run(t, s, "x = 1")
	folder := s.folder.Name()
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for _, err := os.Stat(filepath.Join(folder, "started")); err != nil; _, err = os.Stat(filepath.Join(folder, "started")) {
			runtime.Gosched()
		}
		cancel(why)
	}()
	if _, err := s.Run(ctx, "open('started', 'w').close()\nwhile True: pass"); !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
	if _, err := s.Run(ctx, "1"); !errors.Is(err, why) {
		t.Errorf("a call after its context: %v", err)
	}
	if got := run(t, s, "'x' in globals()"); got != news+"False" {
		t.Errorf("the next call: %q", got)
	}
}

func TestTwoHundredSessionsAtOnce(t *testing.T) {
	const n = 200
	p, _ := open(t, PythonConfig{Timeout: time.Minute})
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			s := p.Session()
			for _, c := range [][2]string{
				{fmt.Sprintf("import os; x = %d", i), ""},
				{"open('f', 'w').write(str(x)) and x", strconv.Itoa(i)},
				{"x, open('f').read(), os.listdir('.')", fmt.Sprintf("(%d, '%d', ['f'])", i, i)},
			} {
				if got, err := s.Run(t.Context(), c[0]); err != nil || got != c[1] {
					errs[i] = errors.Join(errs[i], fmt.Errorf("session %d: %q, %v, want %q", i, got, err, c[1]))
				}
			}
			errs[i] = errors.Join(errs[i], s.Close())
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestCallsOfOneSessionWaitForEachOther(t *testing.T) {
	_, s := open(t, PythonConfig{})
	run(t, s, "x = 0")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := s.Run(t.Context(), "y = x\nfor _ in range(10000): pass\nx = y + 1"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := run(t, s, "x"); got != "20" {
		t.Errorf("%s of 20 calls", got)
	}
}

// Folders that os.RemoveAll could not remove: closed to their owner, and deeper than files can be open at once.
func TestCloseRemovesEverythingAndMayBeCalledAgain(t *testing.T) {
	p, s := open(t, PythonConfig{})
	run(t, s, "import os\nos.mkdir('closed', 0o300); open('closed/f', 'w').close()\nos.mkfifo('pipe'); os.symlink('/', 'root')")
	run(t, s, "for i in range(1000):\n  os.mkdir('d'); os.chdir('d')")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 500, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if left := leftovers(t); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	if _, err := s.Run(t.Context(), "1"); err == nil || err.Error() != "tool: the Python session is closed" {
		t.Errorf("a call after Close: %v", err)
	}
	if err := p.Session().Close(); err != nil {
		t.Errorf("a session without a call: %v", err)
	}
}

// host is the process that is killed: it has one session in a call, one between calls, and waits. It ends with the test, however
// that ends.
func host() {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	p, err := OpenPython(context.Background(), PythonConfig{Accept: everything, Timeout: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	idle, busy := p.Session(), p.Session()
	if _, err := idle.Run(context.Background(), "open('f', 'w').close()"); err != nil {
		fmt.Println(err)
	}
	busy.Run(context.Background(), "import os; print(os.getpid()); open('started', 'w').close()\nwhile True: pass")
}

func TestAKilledHostLeavesNoProcess(t *testing.T) {
	if os.Getenv("MOLT_TEST_HOST") != "" {
		host()
		return
	}
	folder(t)
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "MOLT_TEST_HOST=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	var said strings.Builder
	cmd.Stdout = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	exists := func() bool {
		found, _ := filepath.Glob(filepath.Join(os.TempDir(), "*", "started"))
		return len(found) == 1
	}
	for !exists() {
		select {
		case err := <-ended:
			t.Fatalf("the host has ended: %v: %s", err, &said)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if n := len(sessions(t)); n != 2 {
		t.Errorf("%d processes before", n)
	}
	cmd.Process.Kill()
	<-ended
	for deadline := time.Now().Add(10 * time.Second); len(sessions(t)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes left: %q", sessions(t))
		}
	}
	// Its folders are the next host's to remove, but not the folder of one that lives or is about to lock it.
	_, s := open(t, PythonConfig{})
	run(t, s, "open('mine', 'w').close()")
	old := time.Now().Add(-time.Hour)
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	for _, f := range folders {
		if err := os.Chtimes(f, old, old); err != nil {
			t.Fatal(err)
		}
	}
	young := filepath.Join(os.TempDir(), "molt-python-young")
	if err := os.Mkdir(young, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPython(t.Context(), PythonConfig{Accept: everything}); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	slices.Sort(left)
	if want := []string{s.folder.Name(), young}; len(folders) != 3 || !slices.Equal(left, want) {
		t.Errorf("of %q there are left %q, want %q", folders, left, want)
	}
	if err := os.Remove(young); err != nil {
		t.Error(err)
	}
}

// interpreter puts a python3 into PATH whose ctypes, which that code calls real, it changes.
func interpreter(t *testing.T, code string) {
	t.Helper()
	real, err := python()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const find = "import sys\nsys.path.remove(%[1]q); del sys.modules['ctypes']\nimport ctypes as real\n"
	const answer = "#!/bin/sh\nexec %q -I -c \"import sys; sys.path.insert(0, '%s')\n$3\"\n"
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "ctypes.py"), fmt.Appendf(nil, find+code, dir), 0o600),
		os.WriteFile(filepath.Join(dir, "python3"), fmt.Appendf(nil, answer, real.path[0], dir), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// The system takes the parent-death signal back from a python3 with rights of its own; the interpreter here takes it back itself.
func TestAPythonThatLosesTheParentDeathSignalTakesItAgain(t *testing.T) {
	folder(t)
	interpreter(t, "real.CDLL(None).prctl(1, 0)\n")
	p, err := OpenPython(t.Context(), PythonConfig{Accept: everything})
	if err != nil {
		t.Fatal(err)
	}
	const ask = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); n.value"
	if got := run(t, session(t, p), ask); got != "9" {
		t.Errorf("signal %s, want 9", got)
	}
}

// A machine without Landlock, without seccomp, and a Python without ctypes.
func TestAMissingProtectionIsAnErrorUnlessAccepted(t *testing.T) {
	const without = `class Kernel:
    def __init__(self, library): self.real = load(library)
    def syscall(self, number, *rest): return -1 if number in (444, 445, 446) and %[1]d else self.real.syscall(number, *rest)
    def prctl(self, option, *rest): return -1 if option == 22 and %[2]d else self.real.prctl(option, *rest)
load, real.CDLL = real.CDLL, Kernel
`
	for _, c := range []struct {
		name, code string
		missing    []string
	}{
		{"no Landlock", fmt.Sprintf(without, 1, 0), []string{"files"}},
		{"no seccomp", fmt.Sprintf(without, 0, 1), []string{"calls"}},
		{"no ctypes", "raise ImportError", everything},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder(t)
			interpreter(t, c.code)
			want := "tool: this machine cannot confine the " + c.missing[0] + " of a session"
			if _, err := OpenPython(t.Context(), PythonConfig{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
			p, err := OpenPython(t.Context(), PythonConfig{Accept: everything})
			if err != nil {
				t.Fatal(err)
			}
			s := session(t, p)
			for _, m := range c.missing {
				if !slices.Contains(p.Missing, m) {
					t.Errorf("missing %q, want %q", p.Missing, c.missing)
				}
			}
			if got := run(t, s, "x = 1\nx"); got != "1" {
				t.Error(got)
			}
			if got := run(t, s, "bytearray(10 << 30)"); !strings.Contains(got, "out of memory") {
				t.Error(got)
			}
			if c.missing[0] != "calls" && len(c.missing) == 1 {
				return
			}
			// Without seccomp code can start processes; they end with the session's process.
			run(t, s, "import os, time; pid = os.fork()\nwhile pid == 0: time.sleep(1)")
			child, err := strconv.Atoi(run(t, s, "pid"))
			if err != nil {
				t.Fatal(err)
			}
			run(t, s, "import os; os._exit(0)")
			for deadline := time.Now().Add(10 * time.Second); !strings.Contains("Z", state(t, child)); runtime.Gosched() {
				if time.Now().After(deadline) {
					t.Fatal("the child is alive")
				}
			}
		})
	}
}

func TestNoPythonIsAnError(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := OpenPython(t.Context(), PythonConfig{})
	if err == nil || !strings.Contains(err.Error(), "python3 does not run") || !strings.Contains(err.Error(), "not found in $PATH") {
		t.Error(err)
	}
}

func ExampleSession_Tool() {
	python, err := OpenPython(context.Background(), PythonConfig{Accept: everything})
	if err != nil {
		fmt.Println(err)
		return
	}
	session := python.Session()
	defer session.Close()
	tool := session.Tool()
	for _, code := range []string{`{"code": "x = 6"}`, `{"code": "x * 7"}`, `{"code": 1}`} {
		answer, err := tool.Call(context.Background(), json.RawMessage(code))
		fmt.Println(answer, err)
	}
	// Output:
	//  <nil>
	// 42 <nil>
	// error: the argument "code" must be a string, not 1 <nil>
}
