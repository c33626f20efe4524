"""The plots, each written for a cast (a table of characters from which names are picked).

A pronoun refers to the first character named before it in its sentence, otherwise to the hero.
Everyone but the hero is picked among those not yet in the story.
"""

from data.story import words
from data.story.rules import Among, Let, Pick, Rule, line, maybe, one_of, seq

Cast = tuple[words.Character, ...]


def friend(cast: Cast) -> Pick:
    return Pick("friend", cast, other_than=("hero",))


def third(cast: Cast) -> Pick:
    return Pick("other", cast, other_than=("hero", "friend"))


def opening(cast: Cast) -> Rule:
    """The hero's name, home and hobby."""
    tables = {"mood": words.MOODS, "hero": cast, "place": words.PLACES}
    return seq(
        one_of(
            (3, line("Once upon a time, there was {mood:a} {hero.kind} named {hero}. "
                     "{hero.They} lived {place}.", **tables)),
            (2, line("Once upon a time, {mood:a} {hero.kind} named {hero} lived {place}.",
                     **tables)),
            (2, line("Once upon a time, {place}, there lived {mood:a} {hero.kind} named {hero}.",
                     **tables)),
            (2, line("There once was {mood:a} {hero.kind} named {hero}, who lived {place}.",
                     **tables)),
            (1, line("{hero} was {mood:a} {hero.kind} who lived {place}.", **tables)),
        ),
        one_of(
            line("{hero.They} loved to {hobby}.", hobby=words.HOBBIES),
            line("Every day {hero.they} liked to {hobby}.", hobby=words.HOBBIES),
            line("More than anything, {hero} loved to {hobby}.", hobby=words.HOBBIES),
        ),
    )  # fmt: skip


def keepsake() -> Rule:
    """A toy to be remembered until the end."""
    tables = {"colour": words.COLOURS, "toy": words.TOYS}
    return one_of(
        line("{hero} had {colour:a} {toy} and took it everywhere.", **tables),
        line("{hero.Their} best toy was {colour:a} {toy}.", **tables),
        line("For {hero.their} birthday, {hero} had been given {colour:a} {toy}.", **tables),
    )


def lost(cast: Cast) -> Rule:
    """The keepsake is gone; it is where the friend says it is."""
    missed = one_of("It was not there.", "There was no {toy}.", "But the {toy} was not there.")
    second = Pick("second", words.SPOTS, other_than=("first",))
    return seq(
        line("One {weather} morning, the {colour} {toy} was gone!", weather=words.WEATHER),
        line("{hero} looked {first}.", first=words.SPOTS),
        missed,
        one_of(
            (2, found(cast, looked=("first",))),
            (3, seq(line("{hero.They} looked {second}.", second=second), missed,
                    found(cast, looked=("first", "second")))),
        ),
    )  # fmt: skip


def found(cast: Cast, looked: tuple[str, ...]) -> Rule:
    """The keepsake comes back, from none of the spots where the hero looked."""
    spot = Pick("spot", words.SPOTS, other_than=looked)
    return seq(
        one_of(line("{hero} sat down and cried. Then {friend} came along.", friend=friend(cast)),
               line("Just then {hero} met {friend}.", friend=friend(cast))),
        one_of('"What is wrong?" asked {friend}.', '"Why are you so sad?" asked {friend}.'),
        one_of('"I cannot find my {colour} {toy}," said {hero}.',
               '"My {toy} is gone," said {hero}.'),
        one_of(line('"I saw a {toy} {spot}!" said {friend}.', spot=spot),
               line('"Let us look {spot}," said {friend}.', spot=spot)),
        one_of("So they looked {spot}, and there was the {colour} {toy}!",
               "They ran to look, and {spot} they found the {colour} {toy}."),
        one_of('"Thank you, {friend}!" said {hero}.', "{hero} gave {friend} a big hug."),
    )  # fmt: skip


def sharing(cast: Cast) -> Rule:
    """Things are found, given away and sometimes found again."""
    tables = {"gift": words.GIFT_SIZES, "thing": words.THINGS, "weather": words.WEATHER}
    return seq(
        one_of(
            line("One {weather} day, {hero} found {thing:{gift.start}} {spot}.",
                 spot=words.SPOTS, **tables),
            line("One {weather} morning, {hero} went out and found {thing:{gift.start}}.",
                 **tables),
        ),
        one_of(line("Soon {hero.their} friend {friend} came by.", friend=friend(cast)),
               line("On the way home {hero.they} met {friend}.", friend=friend(cast))),
        one_of('"What nice {thing:s}!" said {friend}.',
               '"May I have some {thing:s}?" asked {friend}.',
               '"I have no {thing:s} at all," said {friend}.'),
        one_of("{hero} gave {gift.less} to {friend}.",
               "{hero.They} gave {gift.less} of them to {friend}."),
        "Now {hero.they} had {thing:{gift.left}}.",
        maybe('"Thank you!" said {friend}.'),
        maybe(seq(
            one_of(line("Later, {hero} found {more} more.", more=words.FEW),
                   line("Then {hero.they} looked around and found {more} more.", more=words.FEW)),
            Let("total", lambda known: words.Number(known["gift"].left + known["more"])),
            one_of("Now {hero.they} had {thing:{total}}.", "That made {thing:{total}}."),
        ), 0.6),
        one_of("{hero} learned that it feels good to share.", "Sharing made them both happy."),
    )  # fmt: skip


def picnic(cast: Cast) -> Rule:
    """Treats are baked and eaten."""
    return seq(
        line("One {weather} day, {hero} baked {treat:{gift.start}}.",
             weather=words.WEATHER, treat=words.TREATS, gift=words.GIFT_SIZES),
        one_of(line("{hero.They} took them to {friend}, and they had a picnic {spot}.",
                    friend=friend(cast), spot=words.SPOTS[4:]),
               line("They smelled so good that {friend} came to see.", friend=friend(cast))),
        one_of('"I love {treat:s}!" said {friend}.', '"Please have some," said {hero}.'),
        one_of("Together they ate {gift.less}.", "They ate {gift.less} and laughed a lot."),
        "Now {hero.they} had {treat:{gift.left}}.",
        one_of('"Let us keep the rest for tomorrow," said {friend}.',
               "{hero.They} kept the rest for {hero.their} grandmother."),
    )  # fmt: skip


def garden(cast: Cast) -> Rule:
    """Seeds are planted by two and add up."""
    return seq(
        line("One spring day, {hero} planted {some} {seed} seeds.",
             some=words.SOME, seed=words.SEEDS),
        line("{friend} came to help and planted {more} more.",
             friend=friend(cast), more=words.SOME),
        Let("total", lambda known: words.Number(known["some"] + known["more"])),
        one_of("Now there were {total} seeds.", "That made {total} seeds."),
        one_of("They gave them water every day.", "The sun was warm and the rain was soft.",
               '"Grow, little seeds, grow!" said {hero}.'),
        one_of("When summer came, {seed:{total}} stood in the garden.",
               "After many weeks they could count {seed:{total}}."),
        one_of("{hero} learned that good things take time.",
               '"It was worth the wait," said {friend}.'),
    )  # fmt: skip


def helping(cast: Cast) -> Rule:
    """A small animal is helped and gives thanks."""
    return seq(
        one_of(line("One {weather} day, {hero} and {friend} went for a walk.",
                    weather=words.WEATHER, friend=friend(cast)),
               line("One {weather} day, {hero} was out to play with {friend}.",
                    weather=words.WEATHER, friend=friend(cast))),
        line("They saw a {cub} that was {plight.state}.", cub=words.CUBS, plight=words.PLIGHTS),
        one_of('"Poor {cub}! We must help," said {friend}.', '"Oh no!" cried {friend}.',
               '"Do not be afraid, little {cub}," said {hero}.'),
        one_of("{hero} {plight.cure}.", "So {hero} was quick and {plight.cure}."),
        one_of(line("The {cub} was so glad that it gave {hero} {gift:a}.", gift=words.GIFTS),
               line('"Thank you," said the {cub}. "Please take this {gift}."', gift=words.GIFTS)),
        one_of("{hero} kept the {gift} for a long time.",
               "{hero} gave the {gift} to {friend}, who put it on a shelf.",
               "{hero.They} put the {gift} in {hero.their} pocket."),
        one_of("{hero} learned that even small friends matter.", "The {cub} waved and ran home."),
    )  # fmt: skip


def trip(cast: Cast) -> Rule:
    """Three things are packed; one of them turns out to be needed."""
    return seq(
        line("One {weather} day, {hero} and {friend} set out for {goal}.",
             weather=words.WEATHER, friend=friend(cast), goal=words.GOALS),
        line("{hero} packed {a:a}, {b:a} and {c:a}.",
             a=words.TOOLS, b=Pick("b", words.TOOLS, ("a",)), c=Pick("c", words.TOOLS, ("a", "b"))),
        one_of(line("On the way {needed.trouble}.", needed=Among("needed", ("a", "b", "c"))),
               line("Suddenly, {needed.trouble}.", needed=Among("needed", ("a", "b", "c")))),
        one_of('"What shall we do?" asked {friend}.', '"Oh no!" said {friend}.'),
        one_of('"I have {needed:a}!" said {hero}.', "But {hero} had {needed:a}."),
        "{hero.They} {needed.use}.",
        one_of("At last they came to {goal}.", "In the evening they reached {goal}."),
        one_of("{hero} was proud.", '"You think of everything," said {friend}.',
               "It was the best trip ever."),
    )  # fmt: skip


def sounds(cast: Cast) -> Rule:
    """A strange sound, a wrong guess, and the animal that made it."""
    guess = Pick("guess", words.BEASTS, other_than=("beast",))
    return seq(
        one_of(line("One {weather} night, {hero} and {friend} heard a strange sound.",
                    weather=words.WEATHER, friend=friend(cast)),
               line("One night {friend} came to stay, and they heard a sound {spot}.",
                    friend=friend(cast), spot=words.SPOTS)),
        line('It went "{beast.sound}, {beast.sound}!"', beast=words.BEASTS),
        one_of(line('"Is that {guess:a}?" asked {friend}.', guess=guess),
               line('"I think it is {guess:a}," said {friend}.', guess=guess)),
        '"No, {guess:a} says {guess.sound}," said {hero}.',
        one_of("{hero} took a light and went to see.", "So {hero} opened the door."),
        one_of("It was only {beast:a}!", "There stood {beast:a}."),
        one_of("They laughed and gave the {beast} something to eat.",
               "The {beast} wanted to play, too.",
               '"Good night, {beast}," said {hero}.'),
    )  # fmt: skip


def trading(cast: Cast) -> Rule:
    """Things change hands; who has what must be kept in mind."""
    return seq(
        line("One {weather} day, {hero} had {mine:a}, and {friend} had {yours:a}.",
             weather=words.WEATHER, mine=words.SWAPS, friend=friend(cast),
             yours=Pick("yours", words.SWAPS, ("mine",))),
        one_of('"I like your {yours}," said {hero}.', '"I like your {mine}," said {friend}.'),
        one_of("So they traded.", '"Let us trade," said {friend}.',
               '"Shall we trade?" asked {hero}.'),
        "Now {hero} had the {yours}, and {friend} had the {mine}.",
        maybe(seq(
            line("Then {other} came with {new:a}.", other=third(cast),
                 new=Pick("new", words.SWAPS, ("mine", "yours"))),
            one_of('"I need {yours:a}," said {other}.', '"What a fine {yours}!" said {other}.'),
            "{hero} gave {other} the {yours} and got the {new}.",
            "In the end {hero} had the {new}, {friend} had the {mine}, "
            "and {other} had the {yours}.",
        ), 0.6),
        one_of("Everyone was happy with the trade.", "It was a fair trade."),
    )  # fmt: skip


def race(cast: Cast) -> Rule:
    """Three run; the order at the end follows from who came first and second."""
    runners = ("hero", "friend", "other")
    return seq(
        line("One {weather} day, {hero}, {friend} and {other} ran a race to {goal}.",
             weather=words.WEATHER, friend=friend(cast), other=third(cast), goal=words.GOALS),
        line("The prize was {prize:a}.", prize=words.PRIZES),
        one_of('"Ready, steady, go!" called an old owl.', "They all ran as fast as they could."),
        line("{fast} came first, {next} came second, and {last} came last.",
             fast=Among("fast", runners), next=Among("next", runners, ("fast",)),
             last=Among("last", runners, ("fast", "next"))),
        "So {fast} won the {prize}.",
        one_of('"Well done, {fast}!" said {next}.', '"That was fun," said {next}.'),
        one_of("{last} was sad, so {fast} let {last} hold the {prize}.",
               '"I will win next time," said {last}.',
               "{fast} shared the {prize} with {next} and {last}."),
    )  # fmt: skip


def way_home() -> Rule:
    """Something to look at between the plot and the end."""
    return seq(
        one_of(line("On the way home, they saw {sight:a}.", sight=words.SIGHTS),
               line('"Look, {sight:a}!" called {friend}.', sight=words.SIGHTS)),
        one_of("They sat down to watch it for a while.",
               '"Make a wish," said {hero}, so {friend} made a wish.',
               "{hero} had never seen such a fine {sight} before."),
    )  # fmt: skip


def ending() -> Rule:
    """The hero's home and hobby return."""
    return one_of(
        (2, "From that day on, {hero} and {friend} were best friends."),
        (2, "After that, {hero} and {friend} met every week to {hobby}."),
        (1, "Then {hero} went home, for it was time to {hobby}."),
        (1, "Soon {hero} was back home {place}."),
        (1, "They told everyone {place} about it."),
    )


def keepsake_ending() -> Rule:
    """The toy comes back."""
    return seq(
        maybe("{hero} and {friend} promised to meet again to {hobby}."),
        one_of(
            "That night {hero} held the {colour} {toy} and fell asleep.",
            "Back home {place}, {hero} told the {colour} {toy} all about it.",
            "{hero} let {friend} play with the {colour} {toy} until it got dark.",
            "At bedtime the {colour} {toy} was safe in {hero.their} arms.",
        ),
    )


PLOTS = (sharing, picnic, garden, helping, trip, sounds, trading, race)
