package engine

import (
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkScheduler is the scheduler's own time in a step: 256 sequences run, 10,000 wait and the cache is full of finished ones,
// by the thousand where it is large. They come in groups of 16 with one prompt after an instruction that all share, and go on for four
// turns each. In "tight" the running sequences alone fill the cache, so that they preempt one another.
func BenchmarkScheduler(b *testing.B) {
	for _, tc := range []struct {
		name                  string
		pages, prompt, output int
	}{{"large", 40_000, 300, 128}, {"short", 40_000, 40, 16}, {"tight", 1_000, 300, 400}} {
		b.Run(tc.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			s := newScheduler(tc.pages, 256, 512)
			turns := map[*sequence]int{}
			add := func(ids []int32, turn int) {
				q := text(ids, tc.output/2+r.IntN(tc.output))
				turns[q] = turn
				s.add(q)
			}
			group := func() {
				ids := count(tc.prompt, 0)
				for i := tc.prompt / 3; i < len(ids); i++ {
					ids[i] = r.Int32N(50_000)
				}
				for range 16 {
					add(ids, 1)
				}
			}
			steps := func(n int) (total, longest time.Duration) {
				for range n {
					for len(s.waiting) < 10_000 {
						group()
					}
					start := time.Now()
					p := s.step()
					s.commit(p)
					spent := time.Since(start)
					for _, d := range p.draws {
						q := d.seq
						id := r.Int32N(50_000)
						if len(q.ids)-q.prompt+1 < q.max {
							s.extend(q, id)
							continue
						}
						start = time.Now()
						s.drop(q)
						spent += time.Since(start)
						if turn := turns[q]; turn < 4 {
							add(append(append(q.ids, id), count(tc.output/4+r.IntN(tc.output/4), int(id))...), turn+1)
						}
						delete(turns, q)
					}
					total, longest = total+spent, max(longest, spent)
				}
				return total, longest
			}
			first, _ := steps(1)
			steps(8_000) // fills the cache
			b.ReportAllocs()
			b.ResetTimer()
			total, longest := steps(b.N)
			b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "ns/op")
			b.ReportMetric(float64(first.Nanoseconds()), "ns-first")
			b.ReportMetric(float64(longest.Nanoseconds()), "ns-longest")
			b.ReportMetric(float64(s.used.Len()), "nodes")
			b.ReportMetric(float64(s.counts.preemptions), "preempted")
		})
	}
}
