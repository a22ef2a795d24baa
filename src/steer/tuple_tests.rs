use super::*;

fn key(n: u64) -> Key {
    Key([n, 0, 0, 0, 0, 0, 0])
}

const MASK: Key = Key([u64::MAX, 0, 0, 0, 0, 0, 0]);

#[test]
fn fills_to_capacity_and_empties_in_any_order() {
    let mut space = TupleSpace::new(1000);
    for round in 0..3u64 {
        let mut slots: Vec<(u64, RuleSlot)> = (0..1000)
            .map(|n| {
                let rank = Rank::new(0, 0, n as u32);
                (n, space.insert(0, &MASK, &key(n), rank, Action::Queue(n as u16)).unwrap())
            })
            .collect();
        assert_eq!(space.insert(0, &MASK, &key(5000), Rank::new(0, 0, 5000), Action::Drop), Err(Full::Rules));
        assert!(slots.iter().all(|(_, slot)| slot.0 < 1000));
        // Interleave, differently each round, so that deletes hit all positions of probe runs.
        slots.sort_by_key(|(n, _)| n.wrapping_mul(0x9e37_79b9 + 2 * round) % 1009);
        while let Some((_, slot)) = slots.pop() {
            space.remove(slot);
            for &(n, slot) in slots.iter().rev().take(20).chain(slots.first()) {
                assert_eq!(space.lookup(&key(n).0), Some((slot, Action::Queue(n as u16))));
            }
        }
        assert!(space.is_empty() && space.index.is_empty());
    }
}

#[test]
fn equal_keys_are_bounded_and_the_best_one_wins() {
    let mut space = TupleSpace::new(1000);
    let add = |space: &mut TupleSpace, id: u32| {
        space.insert(0, &MASK, &key(1), Rank::new(0, 0, id), Action::Queue(id as u16))
    };
    let slots: Vec<_> = (0..MAX_SAME_KEY as u32).map(|id| add(&mut space, id ^ 1).unwrap()).collect();
    assert_eq!(add(&mut space, 900), Err(Full::SameKey));
    // They were added in the order 1, 0, 3, 2, ... and are removed in it.
    for (i, slot) in slots.into_iter().enumerate() {
        let lowest = i as u16 & !1;
        assert_eq!(space.lookup(&key(1).0).unwrap().1, Action::Queue(lowest));
        space.remove(slot);
        if i % 2 == 1 {
            continue;
        }
        assert_eq!(space.lookup(&key(1).0).unwrap().1, Action::Queue(lowest));
    }
    assert!(space.is_empty());
}

#[test]
fn tuples_are_visited_in_the_order_of_what_is_left_in_them() {
    let mut space = TupleSpace::new(16);
    let mask = |bit: u64| Key([bit, 0, 0, 0, 0, 0, 0]);
    let mut add = |bit: u64, priority: u8| {
        let rank = Rank::new(0, priority, 0);
        space.insert(0, &mask(bit), &mask(bit), rank, Action::Queue(priority.into())).unwrap()
    };
    let [a10, _, b9, ..] = [add(1, 10), add(1, 4), add(2, 9), add(2, 3), add(4, 5)];
    space.remove(a10);
    space.remove(b9);
    assert_eq!(space.lookup(&key(7).0).unwrap().1, Action::Queue(5));
}

#[test]
fn keys_and_tuples_whose_hashes_collide_are_kept_apart() {
    // With this seed all keys that have only their first word hash the same, in every tuple.
    let mut space = TupleSpace { seed: Seed::from_fn(|_| 0), ..TupleSpace::new(64) };
    let wide = Key([u64::MAX, u64::MAX, 0, 0, 0, 0, 0]);
    let mut slots = Vec::new();
    for n in 0..32u32 {
        let id = |tuple: u32| 2 * n + tuple;
        for (tuple, mask) in [&MASK, &wide].into_iter().enumerate() {
            let id = id(tuple as u32);
            let rank = Rank::new(tuple as u32, 0, id);
            let slot = space.insert(tuple as u32, mask, &key(n.into()), rank, Action::Queue(id as u16));
            slots.push(slot.unwrap());
        }
    }
    let found = |space: &TupleSpace, key: Key| space.lookup(&key.0).map(|(_, action)| action);
    for n in 0..32 {
        assert_eq!(found(&space, key(n)), Some(Action::Queue(2 * n as u16 + 1)));
        assert_eq!(found(&space, Key([n, 1, 0, 0, 0, 0, 0])), Some(Action::Queue(2 * n as u16)));
    }
    for slot in slots.iter().skip(1).step_by(2) {
        space.remove(*slot);
    }
    for n in 0..32 {
        assert_eq!(found(&space, key(n)), Some(Action::Queue(2 * n as u16)));
    }
}

#[test]
fn tuples_are_bounded_and_released() {
    let mut space = TupleSpace::new(1000);
    let mask = |n: u64| Key([n, 0, 0, 0, 0, 0, 0]);
    let add = |space: &mut TupleSpace, n: u64| {
        space.insert(0, &mask(n), &mask(n), Rank::new(0, 0, n as u32), Action::Drop)
    };
    let first = add(&mut space, 1).unwrap();
    for n in 2..=MAX_TUPLES as u64 {
        add(&mut space, n).unwrap();
    }
    assert_eq!(add(&mut space, 100), Err(Full::Tuples));
    space.remove(first);
    assert_eq!(space.tuples(), MAX_TUPLES - 1);
    add(&mut space, 100).unwrap();
}
