----------------------------- MODULE Membership ----------------------------
(* A change of membership: the operator takes the nodes from one list to the *)
(* next, while candidates go by the old list or the new one, messages are    *)
(* late, a node may lose its memory and the operator may be restarted.       *)
(*                                                                           *)
(*     raise on the old nodes, Q of them -> wait D -> dump from the same Q,  *)
(*     not restarted since -> join the new ones, with the largest F          *)
(*                                                                           *)
(* A node that was raised votes for nobody until it is joined. Publishing    *)
(* the list needs no action: candidates learn it from any node that has it.  *)
(*                                                                           *)
(* Times are countdowns, as in Exclusion. Attempts win by their guess in one *)
(* round, so that both tokens and exclusion are seen. There are no ghosts    *)
(* here, and so no incarnations in the votes (see FencedRedlock).            *)
EXTENDS Votes, TLC

CONSTANTS
  TTL, D,
  Attempts,
  Restarts,     \* how many nodes may lose their memory, once each
  Forgetful,    \* whose: nodes of the old list, of the new one, or of both
  OpRestarts,   \* how often the operator may be restarted
  Focused,      \* whether the first attempt goes by list 1 and the second by list 2, or any by any
  Old, New,     \* the members of list 1 and of list 2
  Edited        \* the members of list 3: the first one as somebody edited it, with the same number

VARIABLES node, operator, attempt

vars == <<node, operator, attempt>>

Attempt == 1..Attempts
List == <<Old, New, Edited>>
Epochs(a) == IF Focused THEN {a} ELSE IF Edited = {} THEN {1, 2} ELSE {1, 3}
Majority(e) == Cardinality(List[e]) \div 2 + 1

\* An epoch is a number and a hash over the list. The mutant compares numbers.
Same(e, f) == e = f \/ (Mutant = "no hash" /\ {e, f} = {1, 3})

----------------------------------------------------------------------------

Fresh == [epoch |-> 0, joined |-> FALSE, open |-> FALSE, life |-> 1, rest |-> 0, asked |-> {},
          owner |-> Nobody, fence |-> 0, left |-> 0]

First(n) == IF n \in Old THEN 1 ELSE IF n \in Edited THEN 3 ELSE 0

Init ==
  /\ node = [n \in Node |-> [Fresh EXCEPT !.epoch = First(n), !.joined = First(n) # 0, !.open = TRUE]]
  /\ operator = [phase |-> "raise", raised |-> Zero, wait |-> 0, fence |-> 0, dumped |-> {},
                 restarts |-> 0]
  /\ attempt = [a \in Attempt |-> [phase |-> "idle", epoch |-> 1, token |-> 0, floor |-> 0, left |-> 0,
                                   votes |-> [n \in Node |-> "none"]]]

----------------------------------------------------------------------------
(* The operator. `raised[n]` is the life of n that said OK.                  *)

Raise(n) ==
  /\ operator.phase = "raise" /\ n \in Old /\ Edited = {}
  /\ node[n].open
  /\ operator.raised[n] # node[n].life
  /\ LET raised == [operator.raised EXCEPT ![n] = node[n].life]
         enough == Cardinality({m \in Old : raised[m] # 0}) >= Majority(1)
     IN operator' = [operator EXCEPT !.raised = raised,
                                     !.phase = IF enough THEN "wait" ELSE "raise",
                                     !.wait = IF enough /\ Mutant # "no wait" THEN D ELSE 0]
  /\ node' = [node EXCEPT ![n].epoch = 2, ![n].joined = IF node[n].epoch = 2 THEN @ ELSE FALSE]
  /\ UNCHANGED attempt

\* Not what it was: back to raise. The mutant does not look.
Dump(n) ==
  LET as_it_was == node[n].life = operator.raised[n] /\ node[n].epoch = 2
      dumped    == operator.dumped \cup {n}
  IN
  /\ operator.phase = "wait" /\ operator.wait = 0
  /\ operator.raised[n] # 0 /\ n \notin operator.dumped /\ node[n].open
  /\ operator' = IF as_it_was \/ Mutant = "no second look"
                 THEN [operator EXCEPT
                        !.dumped = dumped, !.fence = Max(@, node[n].fence),
                        !.phase = IF Cardinality(dumped) >= Majority(1) THEN "join" ELSE @]
                 ELSE [operator EXCEPT
                        !.phase = "raise", !.raised = Zero, !.dumped = {}, !.fence = 0]
  /\ UNCHANGED <<node, attempt>>

\* A join names the life that it means; one that lands on a later life is refused. The lives of new
\* nodes are written down before the first join: a later one may have been joined, and have forgotten
\* it. The mutant joins any that has rested.
Join(n) ==
  /\ operator.phase = "join" /\ n \in New
  /\ node[n].open \/ (Mutant = "joined again" /\ node[n].rest = 0)
  /\ ~(node[n].epoch = 2 /\ node[n].joined)
  /\ node' = [node EXCEPT ![n].epoch = 2, ![n].joined = TRUE, ![n].open = TRUE,
                          ![n].fence = IF Mutant = "join without F" THEN @ ELSE Max(@, operator.fence)]
  /\ UNCHANGED <<operator, attempt>>

OperatorRestarts ==
  /\ operator.restarts < OpRestarts
  /\ operator' = [phase |-> IF Mutant = "operator goes on" THEN operator.phase ELSE "raise",
                  raised |-> IF Mutant = "operator goes on" THEN operator.raised ELSE Zero,
                  wait |-> 0, fence |-> 0, dumped |-> {}, restarts |-> operator.restarts + 1]
  /\ UNCHANGED <<node, attempt>>

----------------------------------------------------------------------------
(* A node that lost its memory: quarantine, then all that Q others know, one *)
(* by one. All of them must be of the list that the node will vote by, and   *)
(* in its epoch: a quorum of the new list need not have a node of the old.   *)

Forget(n) ==
  /\ node[n].life = 1 /\ n \in Forgetful
  /\ Cardinality({m \in Node : node[m].life > 1}) < Restarts
  /\ node' = [node EXCEPT ![n] = [Fresh EXCEPT !.epoch = First(n), !.life = 2, !.rest = D]]
  /\ UNCHANGED <<operator, attempt>>

Learn(n, p) ==
  LET s == node[n]
      h == node[p]
      epoch  == CASE Mutant = "epoch not recovered" -> 1
                  [] Mutant = "old list asked"      -> Max(s.epoch, h.epoch)
                  [] OTHER                          -> h.epoch
      again  == h.epoch # s.epoch /\ Mutant \notin {"epoch not recovered", "old list asked"}
      asked  == IF again THEN {p} ELSE s.asked \cup {p}
      enough == Cardinality(asked) >= Majority(1)
      joined == (epoch = h.epoch /\ h.joined) \/ (epoch = s.epoch /\ s.joined)
  IN
  /\ ~s.open /\ s.rest = 0
  /\ p # n /\ p \notin s.asked /\ h.open
  /\ IF Mutant \in {"epoch not recovered", "old list asked"} THEN p \in Old
     ELSE h.epoch # 0 /\ {n, p} \subseteq List[h.epoch]
  /\ node' = [node EXCEPT ![n].asked = IF enough THEN {} ELSE asked, ![n].open = enough,
                          ![n].fence = Max(@, h.fence), ![n].epoch = epoch,
                          ![n].joined = joined \/ (enough /\ epoch = 1)]
  /\ UNCHANGED <<operator, attempt>>

----------------------------------------------------------------------------
(* The candidates.                                                           *)

Won == {a \in Attempt : attempt[a].phase = "leads"}
Leads(a) == a \in Won /\ attempt[a].left > 0

\* A candidate has a list from the beginning, or from a node that has it.
Begin(a) ==
  /\ attempt[a].phase = "idle"
  /\ \A b \in 1..(a - 1) : attempt[b].phase # "idle"
  /\ \E e \in Epochs(a), guess \in {node[n].fence + 1 : n \in Node} :
       /\ e = 1 \/ \E n \in Node : node[n].epoch = e
       /\ attempt' = [attempt EXCEPT
            ![a].phase = "grant", ![a].epoch = e, ![a].token = guess, ![a].left = TTL,
            ![a].floor = Largest({0} \cup {attempt[b].token : b \in Won}),
            ![a].votes = [n \in Node |-> IF n \in List[e] THEN "due" ELSE "none"]]
  /\ UNCHANGED <<node, operator>>

Vote(a, n) ==
  LET t == attempt[a]
      s == node[n]
      over == s.owner # Nobody /\ s.left = 0
      r == GrantAt([owner |-> IF over THEN Nobody ELSE s.owner, fence |-> s.fence], a, FALSE, t.token)
  IN
  /\ t.votes[n] = "due"
  /\ s.open /\ s.joined /\ Same(s.epoch, t.epoch)
  /\ r.status = "COMMITTED"
  /\ node' = [node EXCEPT ![n].owner = a, ![n].fence = t.token, ![n].left = TTL]
  /\ attempt' = [attempt EXCEPT ![a].votes[n] = IF t.phase = "grant" THEN "yes" ELSE "none"]
  /\ UNCHANGED operator

Win(a) ==
  LET t == attempt[a] IN
  /\ t.phase = "grant" /\ t.left > 0
  /\ Cardinality({n \in Node : t.votes[n] = "yes"}) >= Majority(t.epoch)
  /\ attempt' = [attempt EXCEPT ![a].phase = "leads",
                                ![a].votes = [n \in Node |-> IF @[n] = "due" THEN "due" ELSE "none"]]
  /\ UNCHANGED <<node, operator>>

----------------------------------------------------------------------------

Less(x) == IF x > 0 THEN x - 1 ELSE 0

Time ==
  /\ node' = [n \in Node |-> [node[n] EXCEPT !.left = Less(@), !.rest = Less(@)]]
  /\ operator' = [operator EXCEPT !.wait = Less(@)]
  /\ attempt' = [a \in Attempt |-> [attempt[a] EXCEPT !.left = Less(@)]]
  /\ vars' # vars

Next ==
  \/ Time
  \/ OperatorRestarts
  \/ \E n \in Node : Raise(n) \/ Dump(n) \/ Join(n) \/ Forget(n) \/ \E p \in Node : Learn(n, p)
  \/ \E a \in Attempt : Begin(a) \/ Win(a) \/ \E n \in Node : Vote(a, n)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------

OneLeader      == \A a, b \in Attempt : Leads(a) /\ Leads(b) => a = b
TokensDistinct == \A a, b \in Won : a # b => attempt[a].token # attempt[b].token
TokensGrow     == \A a \in Won : attempt[a].token > attempt[a].floor

Symmetry == Permutations(Old \cap New) \cup Permutations(Old \ New) \cup Permutations(New \ Old)
=============================================================================
