//! What flags may say, and the words about what they may not.

use super::*;
use crate::steer::KEY_MIN;

fn settings(nics: &[&str]) -> Result<Settings, ConfigError> {
    let nics = nics.iter().map(|s| s.parse()).collect::<Result<_, _>>()?;
    Ok(Settings { nics, ..Settings::default() })
}

fn build(nics: &[&str]) -> Result<Config, ConfigError> {
    settings(nics)?.build()
}

fn refused(nics: &[&str]) -> String {
    build(nics).unwrap_err().to_string()
}

#[test]
fn a_nic_with_everything_said() {
    let key = vec!["0a"; KEY_MIN].join(":");
    let spec = format!(
        "n-0,socket=/s,mode=client,queues=127,port=link:b,features=-mq,mtu=9000,capture=/c,filters=10,\
         learn-entries=64,learn-idle=5,rss-table=256,rss-key={key}"
    );
    let config = build(&[&spec, "b,socket=/b"]).unwrap();
    let n = &config.nics[0];
    assert_eq!((n.name.as_str(), n.queue_pairs, n.mtu), ("n-0", 127, 9000));
    assert_eq!(n.endpoint, Endpoint::Connect("/s".into()));
    assert_eq!(n.port, PortConfig::Link("b".into()));
    assert_eq!(n.features, DEVICE_FEATURES & !F_MQ);
    assert_eq!(n.capture.as_deref(), Some(std::path::Path::new("/c")));
    assert_eq!(n.steer.queue_pairs, 127);
    assert_eq!((n.steer.filter_capacity, n.steer.rss_table_len), (10, 256));
    assert_eq!(n.steer.rss_key.bytes(), [10; KEY_MIN]);
    assert_eq!(n.learn, LearnConfig { entries: 64, idle_secs: 5 });
}

#[test]
fn a_nic_with_little_said() {
    let config = build(&["n0,socket=/s"]).unwrap();
    let n = &config.nics[0];
    assert_eq!((n.queue_pairs, n.mtu, n.features), (1, 1500, DEVICE_FEATURES));
    assert_eq!((&n.endpoint, &n.port), (&Endpoint::Listen("/s".into()), &PortConfig::Null));
    assert_eq!((n.steer.clone(), n.learn), (SteerConfig::default(), LearnConfig::default()));
    assert_eq!((config.cpus, config.poll, config.control), (vec![], PollMode::Off, None));
}

#[test]
fn ports() {
    let port =
        |s: &str| build(&[&format!("n0,socket=/s,port={s}"), "b,socket=/b"]).map(|c| c.nics[0].port.clone());
    assert_eq!(port("tap:fn0"), Ok(PortConfig::Tap("fn0".into())));
    assert_eq!(port("loopback"), Ok(PortConfig::Loopback));
    assert_eq!(port("echo"), Ok(PortConfig::Echo));
    assert_eq!(port("null"), Ok(PortConfig::Null));
    assert_eq!(port("gen"), Ok(PortConfig::Gen(GenConfig::default())));
    let generated = GenConfig { flows: 16, size: 64, rate: Some(1000), ..GenConfig::default() };
    assert_eq!(port("gen:flows=16;size=64;rate=1000"), Ok(PortConfig::Gen(generated)));
    for bad in ["", "tap", "tap:", "link:", "null:x", "wire"] {
        let e = port(bad).unwrap_err().to_string();
        assert!(e.contains(&format!("port={bad} is not possible; port takes ")), "{e}");
    }
    let e = port("gen:flows=0").unwrap_err().to_string();
    assert!(e.contains("flows=0 is not possible"), "{e}");
}

#[test]
fn what_a_nic_may_not_say() {
    let long = format!("n0,socket=/{}", "x".repeat(107));
    for (spec, wanted) in [
        ("", "'' can't name a NIC"),
        ("socket=/s", "'socket=/s' can't name a NIC"),
        ("n0", "NIC n0 needs socket=PATH or fd=N"),
        ("n0,socket", "NIC n0: 'socket' is no key=value; keys are socket, mode"),
        ("n0,socket=/s,queus=3", "NIC n0: unknown key 'queus'; keys are socket, mode"),
        ("n0,socket=/s,socket=/t", "NIC n0: 'socket' is given twice"),
        ("n0,socket=", "socket= is not possible; socket takes a path"),
        (&long, "a path of at most 107 bytes"),
        ("n0,socket=/s,mode=both", "mode=both is not possible; mode takes server or client"),
        ("n0,fd=2", "fd=2 is not possible; fd takes 3 to"),
        ("n0,fd=4,socket=/s", "NIC n0 has both socket= and fd="),
        ("n0,fd=4,mode=client", "NIC n0 has mode=client and fd="),
        ("n0,socket=/s,queues=0", "queues takes 1 to 127"),
        ("n0,socket=/s,queues=128", "queues takes 1 to 127"),
        ("n0,socket=/s,queues=many", "queues=many is not possible; queues takes 1 to 127"),
        ("n0,socket=/s,mtu=67", "mtu takes 68 to 65521"),
        ("n0,socket=/s,filters=0", "filters takes 1 to 1048576"),
        ("n0,socket=/s,learn-idle=16384", "learn-idle takes 1 to 16383"),
        ("n0,socket=/s,rss-table=100", "rss-table takes a power of two up to 4096"),
        ("n0,socket=/s,rss-key=6d:5a", "An RSS key of 2 bytes is not possible"),
        ("n0,socket=/s,rss-key=6d:5", "'5' is no byte"),
        ("n0,socket=/s,features=-turbo", "features=-turbo is not possible: 'turbo' is no feature"),
        ("n0,socket=/s,capture=", "capture takes a path"),
    ] {
        let e = refused(&[spec]);
        assert!(e.contains(wanted), "{spec}: {e}");
    }
}

#[test]
fn what_nics_may_not_share() {
    let e = refused(&["n0,socket=/a", "n0,socket=/b"]);
    assert_eq!(e, "NICs n0 and n0 have the same name: n0");
    let e = refused(&["n0,socket=/a", "n1,socket=/a,mode=client"]);
    assert_eq!(e, "NICs n0 and n1 have the same socket: /a");
    let e = refused(&["n0,fd=3", "n1,fd=3"]);
    assert_eq!(e, "NICs n0 and n1 have the same socket: descriptor 3");
    let e = refused(&["n0,socket=/a,port=tap:t", "n1,socket=/b,port=tap:t"]);
    assert_eq!(e, "NICs n0 and n1 have the same TAP device: t");
    let control = Some("/a".into());
    let e = Settings { control, ..settings(&["n0,socket=/a"]).unwrap() }.build().unwrap_err().to_string();
    assert_eq!(e, "/a can't be both NIC n0's socket and the control socket");
    assert!(refused(&[]).starts_with("There is no NIC: give --socket-path"));
}

#[test]
fn a_link_needs_an_end_that_is_free() {
    assert!(build(&["a,socket=/a,port=link:b", "b,socket=/b,port=link:a"]).is_ok());
    let three = build(&["a,socket=/a", "b,socket=/b,port=link:a", "c,socket=/c,port=link:b"]).unwrap();
    let ports: Vec<_> = three.nics.iter().map(|n| n.port.clone()).collect();
    assert_eq!(ports, ["b", "a", "b"].map(|n| PortConfig::Link(n.into())));
    for (nics, wanted) in [
        (
            ["a,socket=/a,port=link:a", "b,socket=/b"],
            "NIC a is linked to a, which is itself; there are: a, b",
        ),
        (
            ["a,socket=/a,port=link:x", "b,socket=/b"],
            "NIC a is linked to x, which does not exist; there are: a, b",
        ),
        (
            ["a,socket=/a,port=link:b", "b,socket=/b,port=echo"],
            "NIC a is linked to b, which has port=echo; a link leads to a NIC with port=tap:NAME, with port=link:NIC \
             or without port=; there are: a, b",
        ),
    ] {
        assert!(refused(&nics).starts_with(wanted), "{}", refused(&nics));
    }
    for port in ["loopback", "null", "gen:flows=2"] {
        let e = refused(&["a,socket=/a,port=link:b", &format!("b,socket=/b,port={port}")]);
        let kind = port.split(':').next().unwrap();
        assert!(e.contains(&format!("which has port={kind}; a link leads to ")), "{e}");
    }
}

#[test]
fn a_link_may_lead_to_a_tap_device() {
    let nics = [
        "n0,socket=/0,queues=4,port=tap:fn0",
        "n1,socket=/1,queues=2,port=link:n0",
        "n2,socket=/2,port=link:n1",
    ];
    let ports: Vec<_> = build(&nics).unwrap().nics.into_iter().map(|n| n.port).collect();
    assert_eq!(ports[0], PortConfig::Tap("fn0".into()), "it keeps the device");
    assert_eq!(ports[1..], ["n0", "n1"].map(|n| PortConfig::Link(n.into())));
}

#[test]
fn poll_modes_and_cpus() {
    let adaptive = |usecs| Ok(PollMode::Adaptive(Duration::from_micros(usecs)));
    assert_eq!("off".parse(), Ok(PollMode::Off));
    assert_eq!("always".parse(), Ok(PollMode::Always));
    assert_eq!("adaptive".parse(), adaptive(50));
    assert_eq!("adaptive=7".parse(), adaptive(7));
    for bad in ["", "adaptive=", "adaptive=0", "adaptive=1000001", "Always"] {
        let e = bad.parse::<PollMode>().unwrap_err().to_string();
        assert!(e.contains("off, adaptive, adaptive=USECS"), "{e}");
    }
    assert_eq!("3,0-2".parse(), Ok(CpuList(vec![3, 0, 1, 2])));
    for bad in ["", "a", "0,", "2-1", "0,0", "0-2,1", "4096", "-1"] {
        assert!(bad.parse::<CpuList>().unwrap_err().to_string().contains("0,2-3"), "{bad}");
    }
}
