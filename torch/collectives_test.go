package torch_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/molt-go/molt/torch"
)

// Number i of rank r's tensor is 16r+i: every sum below is exact in bfloat16.
func TestCollectivesGiveTheValuesWorkedOutByHand(t *testing.T) {
	for _, size := range []int{2, 4} {
		ranks(t, size, nil, func(s *Scope, g *Group) {
			r, n := g.Rank(), 2*size
			values := func(f func(i int) int, n int) []int64 {
				v := make([]int64, n)
				for i := range v {
					v[i] = int64(f(i))
				}
				return v
			}
			total := 16 * size * (size - 1) / 2
			for _, d := range []DType{Float32, BFloat16, Int64, Float64, Float16, Int32, Uint8} {
				mine := func() Tensor { return s.To(New(s, values(func(i int) int { return 16*r + i }, n)), d) }
				check := func(name string, got Tensor, f func(i int) int, n int) {
					t.Helper()
					if diff := cmp.Diff(values(f, n), Values[int64](got)); diff != "" || got.DType() != d {
						t.Errorf("%s of %v on rank %d: %s", name, got, r, diff)
					}
				}
				check("sum", s.AllReduce_(g, mine(), Sum), func(i int) int { return total + size*i }, n)
				check("min", s.AllReduce_(g, mine(), Min), func(i int) int { return i }, n)
				check("max", s.AllReduce_(g, mine(), Max), func(i int) int { return 16*(size-1) + i }, n)
				if d == Float32 || d == BFloat16 {
					check("mean", s.AllReduce_(g, mine(), Mean), func(i int) int { return 8*(size-1) + i }, n)
				}
				check("all-gather", s.AllGather(g, mine()), func(i int) int { return 16*(i/n) + i%n }, size*n)
				check("reduce-scatter", s.ReduceScatter(g, mine()), func(i int) int { return total + size*(2*r+i) }, 2)
				check("broadcast", s.Broadcast_(g, mine(), size-1), func(i int) int { return 16*(size-1) + i }, n)
				check("all-to-all", s.AllToAll(g, mine()), func(i int) int { return 16*(i/2) + 2*r + i%2 }, n)
				next, previous, got := (r+1)%size, (r+size-1)%size, s.Zeros(d, n)
				if r == 0 {
					s.Send(g, mine(), next)
				}
				s.Receive_(g, got, previous)
				if r != 0 {
					s.Send(g, mine(), next)
				}
				check("receive", got, func(i int) int { return 16*previous + i }, n)
			}
			if err := g.Barrier(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCollectivesTakeAnyLayoutAndShape(t *testing.T) {
	ranks(t, 2, nil, func(s *Scope, g *Group) {
		r := float32(g.Rank())
		pairs := New(s, []float32{r, 5 + r, r, 7 + r}, 2, 2)
		s.AllReduce_(g, s.Narrow(pairs, 1, 0, 1), Sum)
		if diff := cmp.Diff([]float32{1, 5 + r, 1, 7 + r}, Values[float32](pairs)); diff != "" {
			t.Error("a column was reduced, its neighbour not touched:", diff)
		}
		gathered := s.AllGather(g, s.Transpose(New(s, []float32{r, 1, 2, 3}, 2, 2), 0, 1))
		diff := cmp.Diff([]float32{0, 2, 1, 3, 1, 2, 1, 3}, Values[float32](gathered))
		if diff != "" || gathered.String() != "float32[4,2]" {
			t.Error(gathered, diff)
		}
		if got := s.AllGather(g, s.Sum(New(s, []float32{r}))); got.String() != "float32[2]" {
			t.Error("numbers gather into a vector, not", got)
		}
		if got := s.AllGather(g, s.Zeros(Float32, 0, 3)); got.String() != "float32[0,3]" {
			t.Error("nothing gathers into", got)
		}
		s.AllReduce_(g, s.Zeros(Float32, 0), Sum)
		if got := s.AllReduce_(g, New(s, []float32{3 + r}), Product).Item(); got != 12 {
			t.Error("3·4 =", got)
		}
		flags := New(s, []bool{g.Rank() == 1})
		if diff := cmp.Diff([]bool{true}, Values[bool](s.Broadcast_(g, flags, 1))); diff != "" {
			t.Error(diff)
		}
		for name, f := range map[string]func(){
			"all-reduce on rank":      func() { s.AllReduce_(g, s.Zeros(Int64, 1), Mean) },
			"no reduction 9":          func() { s.AllReduce_(g, s.Zeros(Int64, 1), 9) },
			"int64[3]: dimension 0":   func() { s.ReduceScatter(g, s.Zeros(Int64, 3)) },
			"float32[]: dimension 0":  func() { s.AllToAll(g, s.Sum(pairs)) },
			"no rank 2 on":            func() { s.Broadcast_(g, pairs, 2) },
			"no rank -1":              func() { s.Receive_(g, pairs, -1) },
			fmt.Sprint("no rank ", r): func() { s.Send(g, pairs, g.Rank()) },
			"no such tensor":          func() { s.AllGather(g, Tensor{}) },
		} {
			failsQuickly(t, f, name, fmt.Sprintf("on rank %d of 2: ", g.Rank()))
		}
	})
}

func TestCollectivesRecordNothingAndBackwardNoticesAWrite(t *testing.T) {
	ranks(t, 2, nil, func(s *Scope, g *Group) {
		w := New(s, []float32{3}).RequireGrad(true)
		y := s.Mul(w, w)
		if s.AllGather(g, w).RequiresGrad() {
			t.Error("a gathered tensor requires grad")
		}
		s.Backward([]Tensor{y}, nil)
		y = s.Mul(w, w)
		if got := s.AllReduce_(g, w, Sum); got != w || w.Item() != 6 || !w.RequiresGrad() {
			t.Error("a leaf reduced in place:", got, w.Item())
		}
		failsQuickly(t, func() { s.Backward([]Tensor{y}, nil) }, "modified by an inplace operation")
	})
}

func TestSubGroupsNumberTheirRanksByPlace(t *testing.T) {
	ranks(t, 4, nil, func(s *Scope, g *Group) {
		for _, lists := range [][2][]int{{{0, 2}, {1, 3}}, {{2, 0}, {3, 1}}, {{0, 2}, {1, 3}}} {
			list := lists[g.Rank()%2]
			sub, err := g.Sub(list...)
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Close()
			if list[sub.Rank()] != g.Rank() || sub.Size() != 2 {
				t.Errorf("rank %d is %d of %d in %v", g.Rank(), sub.Rank(), sub.Size(), list)
			}
			x := New(s, []int64{int64(g.Rank())})
			if got := Values[int64](s.AllGather(sub, x)); got[0] != int64(list[0]) || got[1] != int64(list[1]) {
				t.Errorf("%v gathers %v", list, got)
			}
			if err := sub.Set("who", []byte{byte(list[0])}); err != nil {
				t.Error(err)
			}
			if got, err := sub.Get("who"); err != nil || got[0] != byte(list[0]) {
				t.Errorf("in the store of %v lies %v, %v", list, got, err)
			}
		}
		for _, list := range [][]int{nil, {(g.Rank() + 1) % 4}, {g.Rank(), g.Rank()}, {g.Rank(), 4}, {g.Rank(), -1}} {
			_, err := g.Sub(list...)
			wantError(t, err, fmt.Sprintf("sub-group on rank %d of 4: ranks %v", g.Rank(), list))
		}
		if err := g.Barrier(); err != nil {
			t.Error(err)
		}
	})
}

func TestAKilledRankIsAnErrorOfTheOthersWithinTheTimeOut(t *testing.T) {
	for _, size := range []int{2, 4} {
		ranks(t, size, []int{1}, func(s *Scope, g *Group) {
			if g.Rank() == 1 {
				time.AfterFunc(100*time.Millisecond, func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) })
			}
			x := s.Zeros(Float32, 1<<20)
			failsQuickly(t, func() {
				for {
					s.AllReduce_(g, x, Sum)
				}
			}, fmt.Sprintf("torch: all-reduce on rank %d of %d: float32[1048576]: ", g.Rank(), size))
			failsQuickly(t, func() { s.AllGather(g, x) }, "all-gather on rank")
			wantError(t, g.Barrier(), "barrier on rank")
		})
	}
}

func TestALateRankIsAnErrorOfTheOthersWithinTheTimeOut(t *testing.T) {
	each(t, 2, 2*time.Second, func(s *Scope, g *Group) {
		if g.Rank() == 1 {
			if _, err := g.Get("never set"); err == nil {
				t.Error("a value that nobody set")
			} else {
				wantError(t, err, "get never set on rank 1 of 2: ")
			}
			return
		}
		x := s.Zeros(Float32, 4)
		defer time.Sleep(2 * time.Second) // its store serves the other
		failsQuickly(t, func() { s.AllReduce_(g, x, Sum) }, "all-reduce on rank 0 of 2: float32[4]: ", "Timed out")
	})
	each(t, 2, 2*time.Second, func(s *Scope, g *Group) {
		x := s.Zeros(Float32, 4)
		if g.Rank() == 0 {
			failsQuickly(t, func() { s.Receive_(g, x, 1) }, "receive on rank 0 of 2")
		} else {
			time.Sleep(3 * time.Second)
		}
	})
}

// Gloo itself would end the process here.
func TestRanksThatDisagreeAreAnErrorOfBoth(t *testing.T) {
	operations := map[string]func(s *Scope, g *Group, x Tensor){
		"all-reduce":     func(s *Scope, g *Group, x Tensor) { s.AllReduce_(g, x, Sum) },
		"all-gather":     func(s *Scope, g *Group, x Tensor) { s.AllGather(g, x) },
		"reduce-scatter": func(s *Scope, g *Group, x Tensor) { s.ReduceScatter(g, x) },
		"broadcast":      func(s *Scope, g *Group, x Tensor) { s.Broadcast_(g, x, 0) },
		"all-to-all":     func(s *Scope, g *Group, x Tensor) { s.AllToAll(g, x) },
	}
	each(t, 2, 3*time.Second, func(s *Scope, g *Group) {
		r := g.Rank()
		for _, name := range slices.Sorted(maps.Keys(operations)) {
			f := operations[name]
			want := []string{fmt.Sprintf("%s on rank %d of 2: ", name, r), "another rank is at another operation"}
			failsQuickly(t, func() { f(s, g, s.Zeros(Float32, 4+4*r)) }, want...)
			failsQuickly(t, func() { f(s, g, s.Zeros([]DType{Float32, Int32}[r], 4)) }, want...)
			f(s, g, s.Zeros(Float32, 4)) // all have noticed: they go on together
		}
		x := s.Zeros(Float32, 4)
		failsQuickly(t, func() { s.Broadcast_(g, x, r) }, "broadcast", "another operation")
		failsQuickly(t, func() { s.AllReduce_(g, x, []Reduction{Sum, Max}[r]) }, "all-reduce", "another operation")
		if r == 0 {
			failsQuickly(t, func() { s.Send(g, x, 1) }, "send on rank 0")
		} else {
			failsQuickly(t, func() { s.Receive_(g, s.Zeros(Float32, 3), 0) }, "receive on rank 1", "shape of tensor")
			time.Sleep(4 * time.Second)
		}
	})
}
