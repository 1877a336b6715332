#![expect(clippy::unwrap_used, reason = "tests")]

use super::super::attributes::{build::attribute, build::message, messages};
use super::*;

const INET4: u8 = 2;
const INET6: u8 = 10;

fn general(family: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut payload = vec![family, 0, 0, 0];
    payload.extend(attributes.concat());
    payload
}

fn expression(called: &str, data: &[Vec<u8>]) -> Vec<u8> {
    let body = [
        attribute(EXPR_NAME, format!("{called}\0").as_bytes()),
        attribute(EXPR_DATA, &data.concat()),
    ];
    attribute(LIST_ELEM, &body.concat())
}

fn register(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

fn value(kind: u16, bytes: &[u8]) -> Vec<u8> {
    attribute(kind, &attribute(DATA_VALUE, bytes))
}

fn rule(kind: u16, family: u8, expressions: &[Vec<u8>]) -> Vec<u8> {
    let body = general(
        family,
        &[attribute(RULE_EXPRESSIONS, &expressions.concat())],
    );
    message(SUBSYSTEM << 8 | kind, &body)
}

fn newgen(committer: &str) -> Vec<u8> {
    let body = general(
        0,
        &[attribute(
            GEN_PROC_NAME,
            format!("{committer}\0").as_bytes(),
        )],
    );
    message(SUBSYSTEM << 8 | MSG_NEWGEN, &body)
}

fn elements(kind: u16, set: &str, values: &[[u8; 4]]) -> Vec<u8> {
    let list: Vec<u8> = values
        .iter()
        .flat_map(|bytes| attribute(LIST_ELEM, &value(ELEM_DATA, bytes)))
        .collect();
    let body = general(
        INET4,
        &[
            attribute(ELEM_LIST_TABLE, b"t\0"),
            attribute(ELEM_LIST_SET, format!("{set}\0").as_bytes()),
            attribute(ELEM_LIST_ELEMENTS, &list),
        ],
    );
    message(SUBSYSTEM << 8 | kind, &body)
}

fn commits(batch: &mut Batch, datagrams: &[Vec<u8>]) -> Vec<Commit> {
    let datagram = datagrams.concat();
    messages(&datagram)
        .filter_map(|message| match batch.take(message.unwrap()) {
            Taken::Commit(commit) => Some(commit),
            Taken::Part | Taken::Torn => None,
        })
        .collect()
}

fn touched(commit: &Commit, address: &str) -> (u32, u32) {
    let touched = commit
        .touched
        .get(&address.parse().unwrap())
        .copied()
        .unwrap_or_default();
    (touched.added, touched.removed)
}

fn dnat(revision: u32, info: &[u8]) -> Vec<u8> {
    expression(
        "target",
        &[
            attribute(1, b"DNAT\0"),
            register(2, revision),
            attribute(3, info),
        ],
    )
}

#[test]
fn a_nat_expression_names_what_the_immediate_before_it_loaded() {
    let rules = [
        expression("immediate", &[register(1, 1), value(2, &[10, 42, 0, 149])]),
        expression("immediate", &[register(1, 9), value(2, &[0, 53, 0, 0])]),
        expression(
            "nat",
            &[
                register(1, 1),
                register(2, 2),
                register(3, 1),
                register(5, 9),
            ],
        ),
    ];
    let heard = commits(
        &mut Batch::default(),
        &[rule(MSG_NEWRULE, INET4, &rules), newgen("nft")],
    );
    assert_eq!(heard[0].committer, "nft");
    assert_eq!(touched(&heard[0], "10.42.0.149"), (1, 0));
    assert_eq!(heard[0].touched.len(), 1);
}

#[test]
fn the_same_bytes_in_a_mark_a_counter_or_a_comment_are_no_address() {
    let address = [10, 42, 0, 149];
    let rules = [
        expression("immediate", &[register(1, 1), value(2, &address)]),
        expression("meta", &[register(2, 3), register(3, 1)]),
        expression("meta", &[register(1, 1), register(2, 3)]),
        expression("cmp", &[register(1, 1), register(2, 0), value(3, &address)]),
        expression("counter", &[attribute(1, &address), attribute(2, &address)]),
        expression(
            "match",
            &[
                attribute(1, b"comment\0"),
                register(2, 0),
                attribute(3, &address),
            ],
        ),
        expression(
            "target",
            &[
                attribute(1, b"MARK\0"),
                register(2, 2),
                attribute(3, &address),
            ],
        ),
    ];
    let heard = commits(
        &mut Batch::default(),
        &[rule(MSG_NEWRULE, INET4, &rules), newgen("nft")],
    );
    assert!(heard[0].touched.is_empty());
    assert_eq!(heard[0].malformed, 0);
}

#[test]
fn a_match_on_the_packets_address_counts_once_for_its_rule() {
    let rules = [
        expression(
            "payload",
            &[
                register(1, 1),
                register(2, 1),
                register(3, 12),
                register(4, 4),
            ],
        ),
        expression(
            "cmp",
            &[register(1, 1), register(2, 0), value(3, &[10, 42, 0, 149])],
        ),
        dnat(
            0,
            &[
                [1, 0, 0, 0],
                [3, 0, 0, 0],
                [10, 42, 0, 149],
                [10, 42, 0, 149],
            ]
            .concat(),
        ),
    ];
    let heard = commits(
        &mut Batch::default(),
        &[rule(MSG_DELRULE, INET4, &rules), newgen("x")],
    );
    assert_eq!(touched(&heard[0], "10.42.0.149"), (0, 1));
}

#[test]
fn xtables_targets_of_either_family_are_read() {
    let mut range = vec![0; 44];
    range[4..8].copy_from_slice(&[10, 42, 1, 76]);
    range[20..24].copy_from_slice(&[10, 42, 1, 76]);
    let six: Ipv6Addr = "2001:db8::35".parse().unwrap();
    let mut range6 = vec![0; 44];
    range6[4..20].copy_from_slice(&six.octets());
    range6[20..36].copy_from_slice(&six.octets());
    let heard = commits(
        &mut Batch::default(),
        &[
            rule(MSG_NEWRULE, INET4, &[dnat(2, &range)]),
            rule(MSG_NEWRULE, INET6, &[dnat(2, &range6)]),
            newgen("iptables-restor"),
        ],
    );
    assert_eq!(touched(&heard[0], "10.42.1.76"), (1, 0));
    assert_eq!(touched(&heard[0], "2001:db8::35"), (1, 0));
}

#[test]
fn an_anonymous_map_takes_its_elements_with_it() {
    let mut batch = Batch::default();
    let gone = general(
        INET4,
        &[
            attribute(SET_TABLE, b"t\0"),
            attribute(SET_NAME, b"__map0\0"),
        ],
    );
    let heard = commits(
        &mut batch,
        &[
            elements(
                MSG_NEWSETELEM,
                "__map0",
                &[[10, 42, 0, 149], [10, 42, 1, 76]],
            ),
            newgen("nft"),
            message(SUBSYSTEM << 8 | MSG_DELSET, &gone),
            elements(MSG_NEWSETELEM, "__map1", &[[10, 42, 1, 76]]),
            newgen("nft"),
        ],
    );
    assert_eq!(touched(&heard[0], "10.42.0.149"), (1, 0));
    assert_eq!(touched(&heard[1], "10.42.0.149"), (0, 1));
    assert_eq!(touched(&heard[1], "10.42.1.76"), (1, 1));
}

#[test]
fn a_commit_with_lost_messages_is_not_told() {
    let mut batch = Batch::default();
    let removed = elements(MSG_DELSETELEM, "set", &[[10, 42, 0, 149]]);
    assert!(commits(&mut batch, std::slice::from_ref(&removed)).is_empty());
    batch.tear();
    assert!(commits(&mut batch, &[newgen("nft")]).is_empty());
    assert_eq!(commits(&mut batch, &[removed, newgen("nft")]).len(), 1);
}

#[test]
fn malformed_objects_are_counted_and_the_rest_is_read() {
    let broken = general(INET4, &[vec![200, 0, 4, 0]]);
    let heard = commits(
        &mut Batch::default(),
        &[
            message(SUBSYSTEM << 8 | MSG_NEWRULE, &broken),
            message(SUBSYSTEM << 8 | MSG_NEWRULE, b"x"),
            rule(MSG_NEWRULE, INET4, &[dnat(2, &[0; 10])]),
            elements(MSG_NEWSETELEM, "set", &[[10, 42, 0, 149]]),
            newgen("nft"),
        ],
    );
    assert_eq!(heard[0].malformed, 3);
    assert_eq!(touched(&heard[0], "10.42.0.149"), (1, 0));
}

proptest::proptest! {
    #[test]
    fn any_bytes_in_a_rule_are_survived(
        kind in 0_u16..20, payload in proptest::collection::vec(proptest::num::u8::ANY, 0..200)
    ) {
        let mut batch = Batch::default();
        batch.take(Message { kind: SUBSYSTEM << 8 | kind, payload: &payload });
    }
}
