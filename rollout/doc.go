// Package rollout says what a training sample is and brings samples to the trainer in the right order.
// It knows no tensors, no trainer, no model and no way to write text; of multimodal it uses the Message type alone.
//
// A rollout is one run of an agent on one task; its trajectories hold token ids, never text. Three rules make a
// sample trustworthy, and the types here leave no way around them:
//
//   - Only a Generator makes a token that is trained on: Trajectory.Append takes Generated values, and Mint, which
//     generators call, is the only maker of them.
//   - A trajectory only grows, and a Completion is appended to exactly the ids that it was generated from.
//   - A rollout that failed is taken out and counted. It is never a reward of zero.
//
// Queue decides, as pure code, which rollout starts next and which groups make the next batch; Collector runs the
// agents as goroutines around it. The admission rule bounds how old a trained token can be: a group is admitted while
// the number of groups admitted before it is less than (version + limit + 1) × batch, counted from the version that the run
// started or resumed with, and batches are taken in the order of admission. The group that replaces a failed or
// filtered one inherits its place. Then no token is more than limit versions old at its optimizer step. A rollout
// batch is one version: a trainer that makes several optimizer steps of one batch raises the version once.
//
// With Plan.Greedy each group has one more rollout, sampled greedily, whose reward is a baseline for the others'. It is
// handed out beside the groups, never in them, and a group that lost it is replaced as one with another failure is, also
// where partial groups are kept. FilterEqual does not look at it, and so takes out groups that the baseline would still
// learn from. A run may resume with another setting of Greedy: groups in flight start again, under the new one.
package rollout
