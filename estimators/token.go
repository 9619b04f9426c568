package estimators

import "errors"

// Reinforce is the discounted sum of the token rewards to the right, whitened over the actions of the batch
// (REINFORCE++, arXiv:2501.03262). Every slot discounts, a tool result in the middle too.
func Reinforce(b Batch) (Result, error) {
	out := Result{b.Zeros(), b.Zeros()}
	for i, mask := range b.Masks {
		rewards, sum := b.tokenRewards(i), 0.0
		for t := len(mask) - 1; t >= 0; t-- {
			sum = rewards(t) + b.Options.Gamma*sum
			if mask[t] {
				out.Advantages[i][t], out.Returns[i][t] = float32(sum), float32(sum)
			}
		}
	}
	if b.Options.Whiten {
		Whiten(out.Advantages, b.Masks)
	}
	return out, nil
}

// GAE is generalized advantage estimation (arXiv:1506.02438) on the token rewards and the critic's values, whitened over
// the actions of the batch. Masked slots are transparent: the next value and the running sum pass over them without
// discount. The value after the last action is 0, for truncated samples too. Returns are advantage + value before whitening.
func GAE(b Batch) (Result, error) {
	if b.Values == nil {
		return Result{}, errors.New("it needs the values of a critic")
	}
	out, o := Result{b.Zeros(), b.Zeros()}, b.Options
	for i, mask := range b.Masks {
		rewards, sum, next := b.tokenRewards(i), 0.0, 0.0
		for t := len(mask) - 1; t >= 0; t-- {
			if !mask[t] {
				continue
			}
			value := float64(b.Values[i][t])
			sum = rewards(t) + o.Gamma*next - value + o.Gamma*o.Lambda*sum
			next = value
			out.Advantages[i][t], out.Returns[i][t] = float32(sum), float32(sum+value)
		}
	}
	if o.Whiten {
		Whiten(out.Advantages, b.Masks)
	}
	return out, nil
}

// OnPolicyDistill is -kl_coef times the KL of each token against the teacher; rewards play no part
// (as GKD with the reverse KL at the sampled token, arXiv:2306.13649).
func OnPolicyDistill(b Batch) (Result, error) {
	if b.KLs == nil {
		return Result{}, errors.New("it needs the KL against a teacher")
	}
	out := Result{b.Zeros(), b.Zeros()}
	for i, mask := range b.Masks {
		for t, action := range mask {
			if action {
				a := float32(-b.Options.KLCoef * float64(b.KLs[i][t]))
				out.Advantages[i][t], out.Returns[i][t] = a, a
			}
		}
	}
	return out, nil
}

// tokenRewards returns the reward of each slot of sample i: the sample's reward at its last action, minus
// kl_coef times the KL at every action, 0 elsewhere.
func (b Batch) tokenRewards(i int) func(t int) float64 {
	mask, last := b.Masks[i], -1
	for t, action := range mask {
		if action {
			last = t
		}
	}
	return func(t int) float64 {
		r := 0.0
		if t == last {
			r = b.Rewards[b.Units[i]]
		}
		if mask[t] && b.KLs != nil {
			r -= b.Options.KLCoef * float64(b.KLs[i][t])
		}
		return r
	}
}
