package estimators

import "errors"

// Reinforce is the discounted sum of the token rewards to the right, whitened over the actions of the batch
// (REINFORCE++, arXiv:2501.03262): the sample's reward at its last action, minus kl_coef times the KL at every action. Every
// slot discounts, a tool result in the middle too, unless skip_gaps is set.
func Reinforce(b Batch) (Result, error) {
	out, o := Result{Advantages: b.Zeros(), Returns: b.Zeros()}, b.Options
	for i, mask := range b.Masks {
		kls, advantages, returns := b.klRow(i), out.Advantages[i][:len(mask)], out.Returns[i][:len(mask)]
		sum, final := 0.0, b.Rewards[b.Units[i]]
		for t := len(mask) - 1; t >= 0; t-- {
			if mask[t] || !o.SkipGaps {
				sum *= o.Gamma
			}
			if !mask[t] {
				continue
			}
			reward := final
			if kls != nil {
				reward -= o.KLCoef * float64(kls[t])
			}
			sum, final = sum+reward, 0
			advantages[t], returns[t] = float32(sum), float32(sum)
		}
	}
	if o.Whiten {
		Whiten(out.Advantages, b.Masks)
	}
	return out, nil
}

// GAE is generalized advantage estimation (arXiv:1506.02438) on the token rewards of [Reinforce] and the critic's values,
// whitened over the actions of the batch. Masked slots are transparent: the next value and the running sum pass over them
// without discount. The value after the last action is 0; with the option bootstrap that of a truncated sample is the
// critic's. Returns are advantage + value before whitening.
func GAE(b Batch) (Result, error) {
	out, o := Result{Advantages: b.Zeros(), Returns: b.Zeros()}, b.Options
	if o.Bootstrap && b.Bootstrap == nil {
		return Result{}, errors.New("bootstrap is set, but the batch has no values after the last actions")
	}
	for i, mask := range b.Masks {
		kls, values, advantages, returns := b.klRow(i), b.Values[i][:len(mask)], out.Advantages[i][:len(mask)], out.Returns[i][:len(mask)]
		sum, next, final := 0.0, 0.0, b.Rewards[b.Units[i]]
		if o.Bootstrap && b.Truncated[b.Units[i]] {
			next = float64(b.Bootstrap[i])
		}
		for t := len(mask) - 1; t >= 0; t-- {
			if !mask[t] {
				continue
			}
			value := float64(values[t])
			delta := final + o.Gamma*next - value
			if kls != nil {
				delta -= o.KLCoef * float64(kls[t])
			}
			sum, next, final = delta+o.Gamma*o.Lambda*sum, value, 0
			advantages[t], returns[t] = float32(sum), float32(sum+value)
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
	out := Result{Advantages: b.Zeros()}
	for i, mask := range b.Masks {
		kls, row := b.KLs[i][:len(mask)], out.Advantages[i][:len(mask)]
		for t, action := range mask {
			if action {
				row[t] = float32(-b.Options.KLCoef * float64(kls[t]))
			}
		}
	}
	return out, nil
}

// klRow returns the KL values of sample i, nil if there are none.
func (b Batch) klRow(i int) []float32 {
	if b.KLs == nil {
		return nil
	}
	return b.KLs[i][:len(b.Masks[i])]
}
