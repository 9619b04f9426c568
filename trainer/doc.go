// Package trainer is the learning side of a run: it takes batches of rollouts, updates the policy and hands its weights back to the
// engine. run.go is the loop; it must not know engine or agents, which come in as [Parts].
//
// # A step
//
// A batch becomes one [Sample] a trajectory. The reference model, the teacher and the critic say what they know of its tokens, package
// estimators turns rewards into advantages, [Pack] cuts the samples into micro-batches without padding, and [Policy.Step] runs the
// model over each. Of every trained token come its log-prob and the entropy [N], never the logits: [tokens, vocabulary] exists a chunk at
// a time. The loss is an expression over these leaves, whose gradients are where the model's backward starts; so a loss by sequences
// costs what one by tokens does.
//
// # A loss
//
// A policy loss gets a [LossInput], one row for each token that the policy chose, and gives a [LossOutput]: what each row is punished
// by, float32 [N], and metrics as sums and counts. It does not divide: the trainer multiplies by the weights of importance sampling,
// adds score centering, and aggregates over the counts of the whole optimizer step, so that neither micro-batches nor ranks change a
// loss. Then come the entropy bonus and the KL term. A program adds its own with one call of [RegisterLoss] before training starts; the
// example there is a complete one. A log-prob that is NaN or infinite is an error that names sample and token, and nothing has changed
// then; tokens that are not trained have no row and no influence.
//
// # Metrics
//
// A row of metrics.jsonl has the keys from [KeyStep] on, lr, seconds since the last row, failed rollouts (also by kind, as failed_timeout:
// see rollout.Failure), truncated ones and filtered groups of the batch, trained_tokens, skipped_steps of the run so far,
// memory_peak_mb of tensors, and group_reward_std, of the shaped rewards around each sample. All else is a mean over the step's tokens:
// return_mean, entropy, advantage_mean, policy_loss; ratio to loss.old, policy_kl (k1 of the same), mismatch_abs and mismatch_k3 to the
// sampler's log-probs and mismatch_share, of tokens where these differ; what the loss documents, as clip_ratio. Importance sampling adds
// is_weight and, of rejected tokens too where they are dropped, is_ratio, behaviour_kl and is_outside, of what is judged as one. KL adds
// kl of the loss, kl_reward and the kl_coef of the step; a critic value_loss, value_clip_ratio and explained_variance, which is left out
// where all returns are equal.
package trainer
