package estimators

import (
	"math"
	"testing"
)

func TestTVAndBinaryKLByHand(t *testing.T) {
	ln := func(p float64) float32 { return float32(math.Log(p)) }
	for _, c := range []struct{ p, q, tv, kl float64 }{
		{0.5, 0.65, 0.15, 0.0471553}, // 0.5·ln(0.5/0.65) + 0.5·ln(0.5/0.35)
		{0.1, 0.25, 0.15, 0.0724603}, // 0.1·ln(0.1/0.25) + 0.9·ln(0.9/0.75)
		{0.25, 0.1, 0.15, 0.0923315},
		{0.3, 0.3, 0, 0},
		{0.5, 1, 0.5, 6.2146086}, // q counts as 1-1e-6: -0.5·ln(4·1e-6·(1-1e-6))
	} {
		if tv := TV(ln(c.p), ln(c.q)); math.Abs(tv-c.tv) > 1e-6 {
			t.Errorf("TV of %v and %v is %v, want %v", c.p, c.q, tv, c.tv)
		}
		if kl := BinaryKL(ln(c.p), ln(c.q)); math.Abs(kl-c.kl) > 1e-6 {
			t.Errorf("KL of %v from %v is %v, want %v", c.p, c.q, kl, c.kl)
		}
	}
}
