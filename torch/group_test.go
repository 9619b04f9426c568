package torch_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/molt-go/molt/torch"
)

// ranks runs the calling test again in size processes, in which it runs f as a rank. Those that killed names must die by SIGKILL.
func ranks(t *testing.T, size int, killed []int, f func(s *Scope, g *Group)) {
	t.Helper()
	if os.Getenv("RANK") != "" {
		c, err := GroupFromEnv()
		if err != nil {
			t.Fatal(err)
		}
		if c.Size != size {
			return
		}
		c.Timeout = 30 * time.Second
		if killed != nil {
			c.Timeout = 5 * time.Second
		}
		g, err := NewGroup(c)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		do(t, func(s *Scope) { f(s, g) })
		return
	}
	host, port, _ := net.SplitHostPort(freeAddress(t))
	var wg sync.WaitGroup
	for rank := range size {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
		cmd.Env = append(os.Environ(), fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", size), "MASTER_ADDR="+host, "MASTER_PORT="+port)
		wg.Go(func() {
			out, err := cmd.CombinedOutput()
			want := "<nil>"
			if slices.Contains(killed, rank) {
				want = "signal: killed"
			}
			if got := fmt.Sprint(err); got != want {
				t.Errorf("rank %d of %d ended with %s, want %s:\n%s", rank, size, got, want, out)
			}
		})
	}
	wg.Wait()
}

func freeAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// wantError checks that err says all of want, in order or not.
func wantError(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v, want one that says %q", err, w)
		}
	}
}

// failsQuickly runs f in a block and wants an error that says want, and no hang: the time-outs here are seconds.
func failsQuickly(t *testing.T, f func(), want ...string) {
	const limit = 20 * time.Second
	t.Helper()
	start := time.Now()
	var err error
	func() {
		defer Catch(&err)
		f()
	}()
	wantError(t, err, want...)
	if d := time.Since(start); d > limit {
		t.Errorf("it took %v to fail, more than %v", d, limit)
	}
}

// each runs f as every rank of a group within this process.
func each(t *testing.T, size int, timeout time.Duration, f func(s *Scope, g *Group)) {
	t.Helper()
	var wg sync.WaitGroup
	address := freeAddress(t)
	for rank := range size {
		wg.Go(func() {
			g, err := NewGroup(GroupConfig{Rank: rank, Size: size, Address: address, Timeout: timeout})
			if err != nil {
				t.Error(err)
				return
			}
			defer g.Close()
			do(t, func(s *Scope) { f(s, g) })
		})
	}
	wg.Wait()
}

func TestTheStoreHoldsAnyBytesUnderAnyKey(t *testing.T) {
	each(t, 2, 30*time.Second, func(s *Scope, g *Group) {
		for i, key := range []string{"a", "", "a\x00b", "a\x00c", "ä/ö"} {
			want := bytes.Repeat([]byte{byte(i), 0}, i*1000)
			if g.Rank() == 1 {
				time.Sleep(10 * time.Millisecond)
				if err := g.Set(key, want); err != nil {
					t.Error(err)
				}
			}
			if got, err := g.Get(key); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%q holds %d bytes, want %d: %v", key, len(got), len(want), err)
			}
		}
		if err := g.Barrier(); err != nil {
			t.Error(err)
		}
	})
}

func TestJoiningFailsByNameWithinTheTimeOut(t *testing.T) {
	const wait = 3 * time.Second
	join := func(configs ...GroupConfig) []error {
		var wg sync.WaitGroup
		errs, address := make([]error, len(configs)), freeAddress(t)
		for i, c := range configs {
			if c.Timeout = wait; c.Address == "" {
				c.Address = address
			}
			wg.Go(func() {
				var g *Group
				if g, errs[i] = NewGroup(c); g != nil {
					g.Close()
				}
			})
		}
		start := time.Now()
		wg.Wait()
		if d := time.Since(start); d > wait+10*time.Second { // a busy machine, not a hang
			t.Errorf("joining took %v of %v", d, wait)
		}
		return errs
	}
	wantError(t, join(GroupConfig{Rank: 0, Size: 4}, GroupConfig{Rank: 2, Size: 4})[0],
		"join on rank 0 of 4: not joined within", "ms: rank 1 3")
	wantError(t, join(GroupConfig{Rank: 1, Size: 2})[0], "join on rank 1 of 2: ")
	twins := errors.Join(join(GroupConfig{Rank: 0, Size: 3}, GroupConfig{Rank: 1, Size: 3}, GroupConfig{Rank: 1, Size: 3})...)
	wantError(t, twins, "join on rank 1 of 3: another process has joined as this rank")
	sizes := errors.Join(join(GroupConfig{Rank: 0, Size: 2}, GroupConfig{Rank: 1, Size: 3})...)
	wantError(t, sizes, "other ranks joined a group of ")

	l, err := net.Listen("tcp", "127.0.0.1:0") // a server that never answers, on a port that rank 0 wants
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	wantError(t, join(GroupConfig{Rank: 0, Size: 2, Address: taken})[0], "join on rank 0 of 2: ", "address already in use")
	wantError(t, join(GroupConfig{Rank: 1, Size: 2, Address: taken})[0], "join on rank 1 of 2: ", "within "+wait.String())

	t.Setenv("MOLT_CUDA_LIB", "/no/libmolt_cuda.so")
	for want, c := range map[string]GroupConfig{
		`no backend "mpi"; known: gloo, nccl`:               {Backend: "mpi", Size: 1},
		"run `make cuda`":                                   {Backend: "nccl", Size: 1, Address: "localhost:1"},
		"join on rank 2 of 2: a rank lies from 0 to size-1": {Rank: 2, Size: 2},
		"join on rank 0 of 0: a rank lies from 0 to size-1": {},
		`the address "localhost" is not host:port`:          {Size: 1, Address: "localhost"},
		`the address "h:99999" is not host:port`:            {Size: 1, Address: "h:99999"},
		"no such host":                                      {Size: 1, Address: "no-such-host.invalid:1"},
	} {
		wantError(t, join(c)[0], want)
	}
}

func TestAClosedGroupIsAnErrorAndLeavesNoThread(t *testing.T) {
	threads := func() int {
		entries, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	var before int
	for i := range 20 {
		each(t, 1, 30*time.Second, func(s *Scope, g *Group) {
			x := s.AllReduce_(g, New(s, []float32{2}), Mean)
			if x.Item() != 2 {
				t.Error("the mean of one rank's 2 is", x.Item())
			}
			for range 2 {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}
			wantError(t, g.Barrier(), "barrier on rank 0 of 1: the process group is closed")
			wantError(t, g.Set("k", nil), "the process group is closed")
			failsQuickly(t, func() { s.AllReduce_(g, x, Sum) }, "the process group is closed")
			_, err := g.Sub(0)
			wantError(t, err, "the process group is closed")
		})
		if i == 4 {
			before = threads()
		}
	}
	if after := threads(); after > before+5 {
		t.Errorf("%d threads after 15 more groups, %d before", after, before)
	}
}

func TestGroupFromEnvNamesWhatIsMissingOrWrong(t *testing.T) {
	good := map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "29500",
		"TORCHELASTIC_USE_AGENT_STORE": "", "TORCHELASTIC_RESTART_COUNT": "3"}
	for name, value := range good {
		t.Setenv(name, value)
	}
	want := GroupConfig{Rank: 1, Size: 2, Address: "[::1]:29500"}
	if c, err := GroupFromEnv(); err != nil || c != want {
		t.Error(c, err)
	}
	t.Setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
	want.Shared = "start3"
	if c, err := GroupFromEnv(); err != nil || c != want {
		t.Error(c, err)
	}
	for _, tc := range []struct{ name, value, want string }{
		{"RANK", "", `RANK="" is not a number`}, {"RANK", "2", "RANK=2 is not below WORLD_SIZE=2"}, {"RANK", "-1", `RANK="-1"`},
		{"WORLD_SIZE", "two", `WORLD_SIZE="two"`}, {"MASTER_ADDR", "", "MASTER_ADDR is not set"}, {"MASTER_PORT", "x", `MASTER_PORT="x"`},
	} {
		t.Setenv(tc.name, tc.value)
		if _, err := GroupFromEnv(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s=%q: error %v, want %q", tc.name, tc.value, err, tc.want)
		}
		t.Setenv(tc.name, good[tc.name])
	}
}

// libtorch's own record of operations is shared by all groups of a process, and not safe for several threads.
func TestGroupsOfOneProcessWorkAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 12 {
				each(t, 1, 30*time.Second, func(s *Scope, g *Group) {
					for range 20 {
						if got := s.AllReduce_(g, New(s, []float32{2}), Sum).Item(); got != 2 {
							t.Error("the sum of one rank's 2 is", got)
						}
					}
				})
			}
		})
	}
	wg.Wait()
}
