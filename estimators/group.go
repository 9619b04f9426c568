package estimators

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// grpoEps keeps the division finite; it is Molt's and small enough to leave every real spread alone.
const grpoEps = 1e-9

// standardize brings x to mean 0 and standard deviation 1, n-1 form, in place; one number or equal ones become exactly 0.
func standardize(x []float64) {
	mean := Mean(x)
	std := Std(x, mean)
	for i := range x {
		x[i] = (x[i] - mean) / (std + grpoEps)
	}
}

// GRPO is (r - mean) / (std + 1e-9) over the rollouts of a group, std with the n-1 denominator
// (DeepSeekMath, arXiv:2402.03300, section 4.1). A group of one and a group of equal rewards give exactly 0.
func GRPO(b Batch) (Result, error) {
	return b.Broadcast(b.PerGroup(standardize)), nil
}

// DrGRPO is r - mean over the rollouts of a group (Dr. GRPO, arXiv:2503.20783): without the division by the standard
// deviation, which favours groups that are nearly always right or wrong.
func DrGRPO(b Batch) (Result, error) {
	return b.Broadcast(b.PerGroup(Center)), nil
}

// RLOO is the reward minus the mean of the group's other rollouts (arXiv:2402.14740). A group of one has no others: its
// advantage is the reward itself.
func RLOO(b Batch) (Result, error) {
	return b.Broadcast(b.PerGroup(func(r []float64) {
		if n := float64(len(r)); n > 1 {
			Center(r)
			for i := range r {
				r[i] *= n / (n - 1)
			}
		}
	})), nil
}

// ReinforceBaseline is r - mean over the rollouts of a group, whitened over the actions of the batch
// (REINFORCE++-baseline, arXiv:2501.03262). Returns are not whitened.
func ReinforceBaseline(b Batch) (Result, error) {
	centered := b.PerGroup(Center)
	out := b.Broadcast(centered)
	if b.Options.Whiten {
		out.Returns = b.Broadcast(centered).Advantages
		Whiten(out.Advantages, b.Masks)
	}
	return out, nil
}

// FlashReinforce is r - mean over the whole batch, every sample once.
func FlashReinforce(b Batch) (Result, error) {
	r := slices.Clone(b.Rewards)
	Center(r)
	return b.Broadcast(r), nil
}

// ReMax is the reward minus that of a greedy rollout of the same prompt (arXiv:2310.10505). The greedy reward is clipped
// as the others are; penalties of length and truncation do not reach it, and need not: any number of the prompt alone
// leaves the gradient unbiased.
func ReMax(b Batch) (Result, error) {
	a := slices.Clone(b.Rewards)
	for u, baseline := range b.Baselines {
		a[u] -= baseline
	}
	return b.Broadcast(a), nil
}

// OPO is the reward minus the mean of the group's rewards weighted by the lengths of its rollouts, which is the baseline of
// least variance if the squared gradient of a rollout grows with its length (arXiv:2505.23585). The length of a rollout
// is the number of actions in all its samples. The paper trains strictly on policy.
func OPO(b Batch) (Result, error) {
	lengths, a := make([]float64, len(b.Rewards)), slices.Clone(b.Rewards)
	for i, mask := range b.Masks {
		for _, action := range mask {
			if action {
				lengths[b.Units[i]]++
			}
		}
	}
	for _, group := range b.Groups {
		// Sums of differences to one reward: equal rewards have exactly that mean.
		first, sum, total := b.Rewards[group[0]], 0.0, 0.0
		for _, u := range group {
			sum, total = sum+lengths[u]*(b.Rewards[u]-first), total+lengths[u]
		}
		for _, u := range group {
			a[u] -= first + sum/max(total, 1)
		}
	}
	return b.Broadcast(a), nil
}

// GPG is α (r - mean) over the rollouts of a group (Group Policy Gradient, arXiv:2504.02546, with F_norm = 1):
// α = B / (B - M), B rollouts in the batch, M of them in groups of equal rewards, which have no gradient and would only
// shrink the mean over the batch. The paper also draws more prompts where M is large: that is the sampler's to do.
func GPG(b Batch) (Result, error) {
	a := b.PerGroup(Center)
	live := 0
	for _, group := range b.Groups {
		if slices.ContainsFunc(group, func(u int) bool { return a[u] != 0 }) {
			live += len(group)
		}
	}
	for u := range a {
		a[u] *= float64(len(a)) / float64(max(live, 1))
	}
	return b.Broadcast(a), nil
}

// MaxRL is (r - mean) / mean over the rollouts of a group, 0 where the mean is 0 (Maximum Likelihood RL, arXiv:2602.02710).
// With rewards 0 and 1 it climbs the log of the success rate, expanded up to the order of the group's size, where r - mean
// climbs the rate itself: rare successes count more. A reward below 0 is an error.
func MaxRL(b Batch) (Result, error) {
	if err := b.checkRewards("at least 0", func(r float64) bool { return r >= 0 }); err != nil {
		return Result{}, err
	}
	return b.Broadcast(b.PerGroup(func(r []float64) {
		mean := Mean(r)
		Center(r)
		for i := range r {
			if mean > 0 {
				r[i] /= mean
			}
		}
	})), nil
}

// PassAtK rewards a group of n rollouts for the chance that at least one of pass_k drawn from it is right (Pass@k training,
// arXiv:2508.10751, its analytic advantage). With f wrong rollouts, miss = C(f,k) / C(n,k) and
// σ² = miss (1 - miss), a right rollout has miss / σ and a wrong one (miss - C(f-1,k-1) / C(n-1,k-1)) / σ. A group where
// every draw of k has the same outcome gives 0. Rewards other than 0 and 1 and groups smaller than pass_k are errors.
func PassAtK(b Batch) (Result, error) {
	k := b.Options.PassK
	if err := b.checkRewards("0 or 1", func(r float64) bool { return r == 0 || r == 1 }); err != nil {
		return Result{}, err
	}
	for _, group := range b.Groups {
		if len(group) < k {
			return Result{}, fmt.Errorf("the group of sample %d has %d rollouts, fewer than pass_k = %d", slices.Index(b.Units, group[0]),
				len(group), k)
		}
	}
	return b.Broadcast(b.PerGroup(func(r []float64) {
		f := 0
		for _, x := range r {
			f += int(1 - x)
		}
		miss := allOf(f, len(r), k)
		sigma := math.Sqrt(miss * (1 - miss))
		for i, x := range r {
			switch {
			case sigma == 0:
				r[i] = 0
			case x == 1:
				r[i] = miss / sigma
			default:
				r[i] = (miss - allOf(f-1, len(r)-1, k-1)) / sigma
			}
		}
	})), nil
}

// allOf is the chance C(f,k) / C(n,k) that all of k drawn from n are among f of them.
func allOf(f, n, k int) float64 {
	p := 1.0
	for i := range k {
		p *= float64(max(f-i, 0)) / float64(n-i)
	}
	return p
}

// GDPO standardizes each component of the reward as [GRPO] does, adds them up by reward_weights, and, with the option
// whiten, standardizes the sum over the rollouts of the batch (arXiv:2601.05242): components keep their
// say whatever their spread. Shaping acts on the whole reward, which it does not use, and is refused.
func GDPO(b Batch) (Result, error) {
	names := slices.Sorted(maps.Keys(b.Components))
	for name := range b.Options.RewardWeights {
		if !slices.Contains(names, name) {
			return Result{}, fmt.Errorf("reward_weights names %q, the reward's components are %s", name, strings.Join(names, ", "))
		}
	}
	if b.Options.Shapes() {
		return Result{}, errors.New("overlong_buffer, stop_coef, reward_min and reward_max shape the whole reward, but only its " +
			"components count here: leave them at their defaults and make a penalty a component")
	}
	sum := make([]float64, len(b.Rewards))
	for _, name := range names {
		weight, ok := b.Options.RewardWeights[name]
		if !ok {
			weight = 1
		}
		b.Rewards = b.Components[name]
		for u, a := range b.PerGroup(standardize) {
			sum[u] += weight * a
		}
	}
	if b.Options.Whiten {
		standardize(sum)
	}
	return b.Broadcast(sum), nil
}

// checkRewards returns an error that names the first unit whose shaped reward is not as wanted.
func (b Batch) checkRewards(want string, ok func(r float64) bool) error {
	for u, r := range b.Rewards {
		if !ok(r) {
			return fmt.Errorf("unit %d (sample %d) has reward %v after shaping, want %s", u, slices.Index(b.Units, u), r, want)
		}
	}
	return nil
}
