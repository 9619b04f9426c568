package estimators

// grpoEps keeps the division finite; it is Molt's and small enough to leave every real spread alone.
const grpoEps = 1e-9

// GRPO is (r - mean) / (std + 1e-9) over the rollouts of a group, std with the n-1 denominator
// (DeepSeekMath, arXiv:2402.03300, section 4.1). A group of one and a group of equal rewards give exactly 0.
func GRPO(b Batch) (Result, error) {
	return b.Broadcast(b.PerGroup(func(r []float64) {
		mean := Mean(r)
		std := Std(r, mean)
		for i := range r {
			r[i] = (r[i] - mean) / (std + grpoEps)
		}
	})), nil
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
	out := b.Broadcast(b.PerGroup(Center))
	if b.Options.Whiten {
		Whiten(out.Advantages, b.Masks)
	}
	return out, nil
}

// FlashReinforce is r - mean over the whole batch, every sample once.
func FlashReinforce(b Batch) (Result, error) {
	r := append([]float64(nil), b.Rewards...)
	Center(r)
	return b.Broadcast(r), nil
}
