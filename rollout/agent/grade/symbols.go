package grade

// symbols are commands of LaTeX, each followed by its character or word; accents keep their names.
const symbols = `
# # $ $ % % & & _ _ acute acute aleph ℵ Alpha Α alpha α amalg ⨿ angle ∠ approx ≈ approxeq ≊ arccos arccos arcsin arcsin arctan arctan ast ∗
asymp ≍ backsim ∽ backsimeq ⋍ backslash \ bar bar because ∵ Beta Β beta β beth ℶ between ≬ bigcap ⋂ bigcirc ◯ bigcup ⋃ bigoplus ⊕
bigotimes ⊗ bigtriangledown ▽ bigtriangleup △ bigvee ⋁ bigwedge ⋀ bowtie ⋈ boxdot ⊡ boxminus ⊟ boxplus ⊞ boxtimes ⊠ breve breve bullet ∙
Bumpeq ≎ bumpeq ≏ Cap ⋒ cap ∩ cdot · cdots ⋯ check check Chi Χ chi χ circ ∘ circeq ≗ circledast ⊛ circledcirc ⊚ circleddash ⊝ Colon ∷
complement ∁ cong ≅ coprod ∐ cos cos cosh cosh Cup ⋓ cup ∪ curlyeqprec ⋞ curlyeqsucc ⋟ curlyvee ⋎ curlywedge ⋏ dag † dagger † daleth ℸ
dashv ⊣ ddot ddot ddots ⋱ Delta Δ delta δ diamond ♢ div ÷ divideontimes ⋇ dot dot doteq ≐ doteqdot ≑ dotplus ∔ dots … dotsb … dotsc …
dotsi … dotsm … dotso … Downarrow ⇓ downarrow ↓ ell ℓ emptyset ∅ Epsilon Ε epsilon ϵ eqcirc ≖ equiv ≡ Eta Η eta η exists ∃ exp exp
fallingdotseq ≒ flat ♭ forall ∀ Gamma Γ gamma γ ge ≥ geq ≥ geqq ≧ geqslant ⩾ gg ≫ gimel ℷ gneqq ≩ gnsim ⋧ grave grave gtrapprox ⪆ gtrdot ⋗
gtreqless ⋛ gtrless ≷ gtrsim ≳ hat hat hbar ħ hookleftarrow ↩ hookrightarrow ↪ hslash ℏ i ı iddots ⋰ iiint ∭ iint ∬ in ∈ inf inf infty ∞
int ∫ intercal ⊺ Iota Ι iota ι j ȷ Kappa Κ kappa κ Lambda Λ lambda λ langle ⟨ lbrace { lceil ⌈ ldots … le ≤ Leftarrow ⇐ leftarrow ←
leftarrowtail ↢ leftharpoondown ↽ leftharpoonup ↼ Leftrightarrow ⇔ leftrightarrow ↔ leftrightsquigarrow ↭ leftthreetimes ⋋ leq ≤ leqq ≦
leqslant ⩽ lessapprox ⪅ lessdot ⋖ lesseqgtr ⋚ lessgtr ≶ lesssim ≲ lfloor ⌊ lim lim ll ≪ ln ln lneqq ≨ lnot ¬ lnsim ⋦ log log
Longleftarrow ⟸ longleftarrow ⟵ Longleftrightarrow ⟺ longleftrightarrow ⟷ longmapsto ⟼ Longrightarrow ⟹ longrightarrow ⟶ looparrowleft ↫
looparrowright ↬ lozenge ◊ Lsh ↰ ltimes ⋉ lVert ‖ lvert | mapsto ↦ max max measuredangle ∡ mho ℧ mid | min min mp ∓ Mu Μ mu μ multimap ⊸
nabla ∇ natural ♮ nearrow ↗ neq ≠ nexists ∄ ngeq ≱ ngtr ≯ ni ∋ nleftarrow ↚ nleftrightarrow ↮ nleq ≰ nless ≮ nmid ∤ not not notin ∉
nparallel ∦ nprec ⊀ nrightarrow ↛ nsubseteq ⊈ nsucc ⊁ nsupseteq ⊉ ntriangleleft ⋪ ntrianglelefteq ⋬ ntriangleright ⋫ ntrianglerighteq ⋭
Nu Ν nu ν nVDash ⊯ nVdash ⊮ nvDash ⊭ nvdash ⊬ nwarrow ↖ odot ⊙ oint ∮ Omega Ω omega ω Omicron Ο omicron ο ominus ⊖ oplus ⊕ oslash ⊘
otimes ⊗ parallel ∥ partial ∂ perp ⊥ Phi Φ phi ϕ Pi Π pi π pitchfork ⋔ pm ± prec ≺ preccurlyeq ≼ preceq ≼ precsim ≾ prime ' prod ∏ propto ∝
Psi Ψ psi ψ rangle ⟩ rbrace } rceil ⌉ rfloor ⌋ Rho Ρ rho ρ rightangle ∟ Rightarrow ⇒ rightarrow → rightarrowtail ↣ rightleftharpoons ⇌
rightthreetimes ⋌ risingdotseq ≓ Rsh ↱ rtimes ⋊ rVert ‖ rvert | searrow ↘ setminus ∖ sharp ♯ Sigma Σ sigma σ sim ∼ simeq ≃ sin sin
sinh sinh smallsetminus ∖ sphericalangle ∢ sqcap ⊓ sqcup ⊔ sqsubset ⊏ sqsubseteq ⊑ sqsupset ⊐ sqsupseteq ⊒ square □ star ⋆ Subset ⋐
subset ⊂ subseteq ⊆ subsetneq ⊊ subsetneqq ⫋ succ ≻ succcurlyeq ≽ succeq ≽ succnsim ⋩ succsim ≿ sum ∑ sup sup Supset ⋑ supset ⊃ supseteq ⊇
supsetneq ⊋ supsetneqq ⫌ surd √ swarrow ↙ tan tan tanh tanh Tau Τ tau τ textdegree ° therefore ∴ Theta Θ theta θ tilde tilde times × to →
top ⊤ trianglelefteq ⊴ triangleq ≜ trianglerighteq ⊵ twoheadleftarrow ↞ twoheadrightarrow ↠ udots ⋰ Uparrow ⇑ uparrow ↑ Updownarrow ⇕
updownarrow ↕ upharpoonleft ↿ upharpoonright ↾ uplus ⊎ Upsilon Υ upsilon υ varepsilon ε varkappa ϰ varnothing ∅ varphi φ varpi ϖ varrho ϱ
varsigma ς vartheta ϑ vartriangleleft ⊲ vartriangleright ⊳ VDash ⊫ Vdash ⊩ vdash ⊢ vdots ⋮ vec vec vee ∨ veebar ⊻ Vert ‖ vert | Vvdash ⊪
wedge ∧ wp ℘ wr ≀ Xi Ξ xi ξ Zeta Ζ zeta ζ { { } }`
