package torch_test

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/molt-go/molt/torch"
)

// Two ranks add up a tensor. Here they are goroutines; as processes they would take their configuration from torch.GroupFromEnv.
func ExampleNewGroup() {
	l, err := net.Listen("tcp", "localhost:0") // finds a free port
	if err != nil {
		fmt.Println(err)
		return
	}
	address := l.Addr().String()
	l.Close()

	rank := func(rank int) error {
		g, err := torch.NewGroup(torch.GroupConfig{Rank: rank, Size: 2, Address: address, Timeout: time.Minute})
		if err != nil {
			return err
		}
		defer g.Close()
		return torch.Do(1, func(s *torch.Scope) error {
			x := s.AllReduce_(g, torch.New(s, []float32{1, float32(10 * rank)}), torch.Sum)
			if rank == 0 {
				fmt.Println(torch.Values[float32](x))
			}
			return nil
		})
	}
	var group sync.WaitGroup
	for r := range 2 {
		group.Go(func() {
			if err := rank(r); err != nil {
				fmt.Println(err)
			}
		})
	}
	group.Wait()
	// Output: [2 10]
}
