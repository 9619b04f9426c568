package trainer

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"testing"
)

var namedPlace = regexp.MustCompile(`^sample (\d+)\b.* token (\d+):`)

// checkSpecial wants every NaN and infinity under the mask to be an error that names its place, and then, with those places masked,
// the values of the formulas worked out here.
func checkSpecial(t *testing.T, name string, in lossInputs, c LossConfig, counts lossCounts, groups number) {
	t.Helper()
	samples, special := in.samples(), 0
	change := changes(samples, counts, groups)
	bad := map[Place]bool{}
	for b := range samples {
		for slot := range in.Mask[b] {
			zero := 0 * (in.LogP[b][slot] + in.Old[b][slot] + in.Rollout[b][slot] + in.Advantages[b][slot])
			if math.IsNaN(float64(zero)) {
				special++
				bad[Place{b, slot + 1}] = samples[b].Tokens.Mask[slot+1]
			}
		}
	}
	if special == 0 {
		t.Errorf("%s: the special inputs hold nothing special", name)
	}
	maps.DeleteFunc(bad, func(_ Place, masked bool) bool { return !masked })
	for len(bad) > 0 {
		_, err := evaluate(t, samples, in.LogP, c, noLimit, change)
		var at Place
		if named := namedPlace.FindStringSubmatch(fmt.Sprint(err)); named != nil {
			fmt.Sscan(named[1]+" "+named[2], &at.Sample, &at.Token)
		}
		if !bad[at] {
			t.Errorf("%s: error %v, want one that names a place of %v: %s", name, err, bad, deviations["not finite"])
			return
		}
		samples[at.Sample].Tokens.Mask[at.Token] = false
		delete(bad, at)
	}
	got, err := evaluate(t, samples, in.LogP, c, noLimit, change)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	byHand(samples, in.LogP, c, change).equal(t, name+", masked", got)
}

// byHand is the loss in plain float64, token by token, with its gradient by differences; what has no gradient stays at x.
func byHand(samples []Sample, logp [][]number, c LossConfig, change func(*Step)) (out evaluated) {
	x := floats(logp, 1)
	step := Step{}
	groups := map[int64]int{}
	for _, s := range samples {
		for _, on := range s.Tokens.Mask {
			if on {
				step.Tokens++
				groups[s.Group]++
			}
		}
	}
	step.Prompts = len(groups)
	change(&step)
	const h = 1e-5
	out.loss = lossByHand(samples, x, x, c, step, groups)
	for b := range x {
		out.grad = append(out.grad, make([]float64, len(x[b])))
		for slot := range x[b] {
			moved := slices.Clone(x)
			moved[b] = slices.Clone(x[b])
			moved[b][slot] += h
			up := lossByHand(samples, moved, x, c, step, groups)
			moved[b][slot] -= 2 * h
			out.grad[b][slot] = (up - lossByHand(samples, moved, x, c, step, groups)) / (2 * h)
		}
	}
	return out
}

func lossByHand(samples []Sample, x, fixed [][]float64, c LossConfig, step Step, groups map[int64]int) (loss float64) {
	is, _ := c.Correction.Resolve()
	for b, s := range samples {
		var sum, n, product, divergence float64
		for slot := range x[b] {
			if s.Tokens.Mask[slot+1] {
				old, beh := float64(s.Old[slot+1]), float64(s.Tokens.LogP[slot+1])
				sum, n, product = sum+fixed[b][slot]-old, n+1, product+old-beh
				divergence += apart(is.Gate, math.Exp(beh), math.Exp(old))
			}
		}
		for slot := range x[b] {
			if !s.Tokens.Mask[slot+1] {
				continue
			}
			old, beh, a := float64(s.Old[slot+1]), float64(s.Tokens.LogP[slot+1]), float64(s.Advantages[slot+1])
			r := math.Exp(x[b][slot] - old)
			if c.Name == "gspo" {
				r = math.Exp(sum/n + x[b][slot] - fixed[b][slot])
			}
			gain := min(r*a, min(max(r, 1-c.ClipLow), 1+c.ClipHigh)*a)
			if c.DualClip > 0 && a < 0 {
				gain = max(gain, c.DualClip*a)
			}
			if c.Name == "cispo" {
				gain = min(math.Exp(fixed[b][slot]-old), c.ClipHigh) * a * x[b][slot]
			}
			weight := math.Exp(old - beh)
			stat := map[string]float64{"token": weight, "seq": math.Exp(product), "geo": math.Exp(product / n)}[is.Level]
			if is.Gate != "ratio" {
				stat = map[string]float64{"token": apart(is.Gate, math.Exp(beh), math.Exp(old)), "seq": divergence / n}[is.Level]
			}
			switch {
			case is.Level == "off":
				weight = 1
			case is.Mode == "clip":
				weight = min(max(weight, is.Band[0]), is.Band[1])
			case is.Mode == "trunc":
				weight = min(weight, is.Band[1])
			case stat < is.Band[0] || stat > is.Band[1]:
				weight = 0
			}
			loss -= gain * weight / map[string]float64{
				"token-mean": float64(step.Tokens), "seq-mean-token-sum": float64(step.Sequences),
				"seq-mean-token-sum-norm": float64(step.Sequences * c.NormTokens), "seq-mean-token-mean": float64(step.Sequences) * n,
				"prompt-mean-token-mean": float64(step.Prompts * groups[s.Group]),
			}[c.Aggregation]
		}
	}
	return loss
}

// apart is how far two probabilities of one token are apart.
func apart(gate string, p, q float64) float64 {
	if gate == "tv" {
		return math.Abs(p - q)
	}
	p, q = min(max(p, 1e-6), 1-1e-6), min(max(q, 1e-6), 1-1e-6)
	return p*math.Log(p/q) + (1-p)*math.Log((1-p)/(1-q))
}
