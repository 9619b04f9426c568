// Package estimators turns the rewards of a training batch into one advantage and one return per token. It is pure
// functions on slices: it must not know tensors, agents, files or goroutines.
//
// # Contract
//
// Everything lives on the next-token axis: a sample of T tokens has T-1 slots, and slot t scores token t+1. A slot is
// an action (mask true) where the policy sampled that token; prompts, tool results and padding are holes in the mask.
//
// [Estimate] takes an [Input]: one reward per sample, rollout and group ids, masks, and what the estimator says it needs
// ([Need]): KL, values, rewards of greedy rollouts, components of the reward. It refuses what is missing, of another shape
// or not finite with an error that names sample and slot; masked slots may hold anything. It merges rewards to one a unit,
// shapes them (length penalty, truncation coefficient, clipping, in this order), and hands a [Batch] to the estimator of
// that name. The [Result] has the shape of the masks, is finite, and is exactly 0 wherever the mask is false, also when the
// estimator wrote there; with it comes the standard deviation of the rewards in each sample's group.
//
// An estimator is a [Func]. It says with a [Unit] what one reward stands for: with [PerRollout] all samples of a rollout
// are one unit with one reward, so that a rollout counts once in its group however many samples it was split into;
// with [PerSample] every sample is a unit and a group of its own. A program adds its own with one call of [Register] before
// training starts; the example of Register is a complete one. Statistics are float64; a batch or group of equal rewards has
// advantage exactly 0, because [Mean] of equal numbers is that number to the last bit.
package estimators
